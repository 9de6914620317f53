"use strict";
// The page is complete without this: it adds copying and a slider over what is already there.
document.documentElement.classList.add("js");

for (const button of document.querySelectorAll("button.copy")) {
  const label = button.textContent;
  button.hidden = false;
  button.addEventListener("click", async () => {
    const source = document.getElementById(button.dataset.copy);
    let copied = false;
    try {
      await navigator.clipboard.writeText(source.textContent);
      copied = true;
    } catch {
      const range = document.createRange();
      range.selectNodeContents(source);
      const selection = window.getSelection();
      selection.removeAllRanges();
      selection.addRange(range);
      copied = document.execCommand("copy");
    }
    button.textContent = copied ? "Copied" : "Selected: copy it yourself";
    setTimeout(() => { button.textContent = label; }, 2000);
  });
}

for (const stepper of document.querySelectorAll(".stepper")) {
  const moments = [...document.getElementById(stepper.dataset.story).tBodies];
  const failure = stepper.closest("details");
  const slider = stepper.querySelector("input[type=range]");
  const only = stepper.querySelector("input[type=checkbox]");
  const output = stepper.querySelector("output");
  let current = Math.max(0, moments.findIndex((moment) => moment.classList.contains("differs")));

  function go(index, scroll) {
    current = Math.min(Math.max(index, 0), moments.length - 1);
    slider.value = current + 1;
    output.textContent = `${current + 1} of ${moments.length}`;
    slider.setAttribute("aria-valuetext", moments[current].querySelector(".what").textContent.trim());
    moments.forEach((moment, at) => {
      moment.classList.toggle("current", at === current);
      moment.hidden = only.checked && at !== current;
    });
    for (const mark of failure.querySelectorAll(".mark")) {
      if (mark.hash === `#${moments[current].id}`) mark.setAttribute("aria-current", "step");
      else mark.removeAttribute("aria-current");
    }
    if (scroll) moments[current].scrollIntoView({ block: "nearest" });
  }

  stepper.hidden = false;
  go(current, false);
  slider.addEventListener("input", () => go(Number(slider.value) - 1, true));
  only.addEventListener("change", () => go(current, true));
  stepper.querySelector(".previous").addEventListener("click", () => go(current - 1, true));
  stepper.querySelector(".next").addEventListener("click", () => go(current + 1, true));
  failure.addEventListener("click", (event) => {
    const mark = event.target.closest(".mark");
    if (!mark) return;
    event.preventDefault();
    go(moments.findIndex((moment) => `#${moment.id}` === mark.hash), true);
  });
  failure.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, pre, .scroll:focus")) return;
    const steps = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (steps) { event.preventDefault(); go(current + steps, true); }
  });
}

// A link to a failure, or to something in it, opens it.
function reveal() {
  const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
  if (target) target.scrollIntoView();
}
window.addEventListener("hashchange", reveal);
reveal();
