"""Reports on a run, made of its `Result` and nothing else: as HTML, JUnit XML, JSON or a summary.

Must survive: keys, values, names and error texts that were chosen to break out of HTML, XML, JSON, Python
source or a terminal; values of any type; texts of any length; hundreds of failures; a crash while a report is
written.
"""
