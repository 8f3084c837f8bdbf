// A wall clock that jumps back and forth by hours all the while: preloaded into a process, in front of libc's
// calls. Clocks that only measure (monotonic ones) are as ever.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define SECOND 1000000000LL

static int (*real)(clockid_t, struct timespec*);
static uint64_t seed;
static int64_t every = SECOND;  // from one jump to the next, in nanoseconds

__attribute__((constructor)) static void prepare(void) {
  const char* given = getenv("LAMINABENCH_CLOCK");
  if (given) {
    char* rest;
    seed = strtoull(given, &rest, 10);
    if (*rest == ':') every = strtoll(rest + 1, NULL, 10) * 1000000;
  }
  if (every < 1) every = SECOND;
  real = NEXT(clock_gettime);
}

// Up to twelve hours in either direction, another one after each jump, the same in all processes.
static int64_t off(void) {
  struct timespec now;
  real(CLOCK_MONOTONIC, &now);
  uint64_t x = seed + (uint64_t)((now.tv_sec * SECOND + now.tv_nsec) / every) * 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return (int64_t)((x ^ (x >> 31)) % 86401) - 43200;
}

int clock_gettime(clockid_t id, struct timespec* into) {
  if (!real) real = NEXT(clock_gettime);
  int failed = real(id, into);
  if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) into->tv_sec += off();
  return failed;
}

int gettimeofday(struct timeval* into, void* zone) {
  (void)zone;
  struct timespec now;
  if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
  into->tv_sec = now.tv_sec, into->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t* into) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (into) *into = now.tv_sec;
  return now.tv_sec;
}
