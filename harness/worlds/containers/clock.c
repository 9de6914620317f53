/* The wall clock of every process that this is preloaded into, as a file says that it is.

   CRASHPROOF_CLOCK names a file of two numbers of 8 bytes, which all these processes share: by how many nanoseconds
   their wall clock is ahead, and how often any of them has read it while it was wrong. Who waits until a moment of the
   wall clock waits as long as is left until then by that clock. Clocks that count from the machine's start are right.

   libfaketime is not this: it leaves cnd_timedwait alone, by which librdkafka waits, for an hour then. This is compiled
   where there are no headers. */

typedef long word;
struct timespec { word seconds, nanoseconds; };
struct timeval { word seconds, microseconds; };

extern void *dlsym(void *, const char *);
extern void *dlvsym(void *, const char *, const char *);
extern void *mmap(void *, unsigned long, int, int, int, word);
extern char *getenv(const char *);
extern int open(const char *, int, ...);
extern int close(int);
extern word syscall(word, ...);

#define NEXT ((void *)-1)
#define FAILED ((void *)-1)
#define READ_WRITE 3
#define SHARED 1
#define OPEN_READ_WRITE 2
#define SECOND 1000000000L
#ifdef __aarch64__
#define CLOCK_GETTIME 113
#define CONDITIONS "GLIBC_2.17"
#else
#define CLOCK_GETTIME 228
#define CONDITIONS "GLIBC_2.3.2"
#endif
enum { REALTIME = 0, REALTIME_COARSE = 5 };

/* Moments before this count from the machine's start: their clock is another one. */
#define FIRST_DAY 1000000000L

static word right[2];
static volatile word *file = right;
static int (*really)(int, struct timespec *);

__attribute__((constructor)) static void begin(void)
{
    really = dlsym(NEXT, "clock_gettime");
    char *place = getenv("CRASHPROOF_CLOCK");
    int descriptor = place ? open(place, OPEN_READ_WRITE) : -1;
    if (descriptor < 0)
        return;
    void *mapped = mmap(0, 2 * sizeof(word), READ_WRITE, SHARED, descriptor, 0);
    close(descriptor);
    if (mapped != FAILED)
        file = mapped;
}

static void move(struct timespec *time, word by)
{
    time->seconds += by / SECOND;
    time->nanoseconds += by % SECOND;
    if (time->nanoseconds < 0) {
        time->nanoseconds += SECOND;
        time->seconds--;
    } else if (time->nanoseconds >= SECOND) {
        time->nanoseconds -= SECOND;
        time->seconds++;
    }
}

int clock_gettime(int clock, struct timespec *time)
{
    /* Others may ask while they begin. */
    int failed = really ? really(clock, time) : syscall(CLOCK_GETTIME, clock, time);
    word ahead = file[0];
    if (!failed && ahead && (clock == REALTIME || clock == REALTIME_COARSE)) {
        file[1]++;
        move(time, ahead);
    }
    return failed;
}

int gettimeofday(struct timeval *time, void *zone)
{
    struct timespec now;
    int failed = clock_gettime(REALTIME, &now);
    if (!failed) {
        time->seconds = now.seconds;
        time->microseconds = now.nanoseconds / 1000;
    }
    return failed;
}

int timespec_get(struct timespec *time, int base)
{
    return base == 1 && !clock_gettime(REALTIME, time) ? base : 0;
}

word time(word *where)
{
    struct timespec now;
    clock_gettime(REALTIME, &now);
    if (where)
        *where = now.seconds;
    return now.seconds;
}

static struct timespec right_moment(const struct timespec *until)
{
    struct timespec moment = *until;
    if (moment.seconds > FIRST_DAY)
        move(&moment, -file[0]);
    return moment;
}

int pthread_cond_timedwait(void *condition, void *mutex, const struct timespec *until)
{
    static int (*wait)(void *, void *, const struct timespec *);
    struct timespec moment = right_moment(until);
    if (!wait)
        wait = dlvsym(NEXT, "pthread_cond_timedwait", CONDITIONS);
    return wait(condition, mutex, &moment);
}

int cnd_timedwait(void *condition, void *mutex, const struct timespec *until)
{
    static int (*wait)(void *, void *, const struct timespec *);
    struct timespec moment = right_moment(until);
    if (!wait)
        wait = dlsym(NEXT, "cnd_timedwait");
    return wait(condition, mutex, &moment);
}
