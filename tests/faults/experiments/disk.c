// A disk that fails when it is told to, and that tells what was done to it: preloaded into a process, in
// front of libc's calls. Only what is under one folder is meant; everybody else's files are as ever.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static char folder[PATH_MAX];
static long left;  // operations until one fails; 0: none does
static long failed;
static int as, full;  // errno, and whether everything after it fails too
static int told = -1;
static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

// From Python: what to fail, of what, and where to tell. Answers how many failed since the last call.
long disk_arm(const char* under, long nth, int error, int stays_full, int tell) {
  pthread_mutex_lock(&one);
  long before = failed;
  snprintf(folder, sizeof folder, "%s", under);
  left = nth, as = error, full = stays_full, told = tell, failed = 0;
  pthread_mutex_unlock(&one);
  return before;
}

static int ours(const char* path) {
  size_t length = strlen(folder);
  return length && !strncmp(path, folder, length) && (path[length] == '/' || !path[length]);
}

static int path_at(int at, const char* name, char* into) {
  char link[64];
  if (name[0] == '/') {
    snprintf(into, PATH_MAX, "%s", name);
    return ours(into);
  }
  if (at == AT_FDCWD) {
    if (!getcwd(into, PATH_MAX)) return 0;
  } else {
    snprintf(link, sizeof link, "/proc/self/fd/%d", at);
    ssize_t size = readlink(link, into, PATH_MAX - 1);
    if (size < 0) return 0;
    into[size] = 0;
  }
  size_t length = strlen(into);
  if (*name) snprintf(into + length, PATH_MAX - length, "/%s", name);
  return ours(into);
}

static int path_of(int handle, char* into) {
  if (!folder[0] || handle == told) return 0;
  int saved = errno, found = path_at(handle, "", into);
  errno = saved;
  return found;
}

// Whether this one fails. `half`: it may do half of its work first.
static int fails(int* half) {
  int now = 0;
  pthread_mutex_lock(&one);
  if (left > 0 && --left == 0) {
    now = 1, left = full ? -1 : 0;
    if (half) *half = full;
  } else if (left < 0) {
    now = 1;
  }
  failed += now;
  pthread_mutex_unlock(&one);
  if (now) errno = as;
  return now;
}

static void tell(const char* what, const char* path, const char* other, long a, const void* data,
                 size_t size) {
  if (told < 0) return;
  char line[2 * PATH_MAX + 64];
  int saved = errno;
  int length = snprintf(line, sizeof line, "%s\t%s\t%s\t%ld\t%zu\n", what, path, other, a, size);
  pthread_mutex_lock(&one);
  if (syscall(SYS_write, told, line, (size_t)length) < 0 ||
      (size && syscall(SYS_write, told, data, size) < 0))
    told = -1;
  pthread_mutex_unlock(&one);
  errno = saved;
}

void disk_mark(const char* what) { tell("mark", what, "", 0, NULL, 0); }

static int opened(int at, const char* name, int flags, mode_t mode) {
  char path[PATH_MAX];
  int there = folder[0] && path_at(at, name, path);
  int made = there && (flags & O_CREAT) && syscall(SYS_faccessat, AT_FDCWD, path, F_OK) < 0;
  if (made && fails(NULL)) return -1;
  int handle = (int)syscall(SYS_openat, at, name, flags, mode);
  if (handle >= 0 && made)
    tell("create", path, "", 0, NULL, 0);
  else if (handle >= 0 && there && (flags & O_TRUNC))
    tell("truncate", path, "", 0, NULL, 0);
  return handle;
}

#define MODE(flags)                      \
  mode_t mode = 0;                       \
  if (flags & (O_CREAT | __O_TMPFILE)) { \
    va_list rest;                        \
    va_start(rest, flags);               \
    mode = (mode_t)va_arg(rest, int);    \
    va_end(rest);                        \
  }

int open(const char* name, int flags, ...) { MODE(flags) return opened(AT_FDCWD, name, flags, mode); }
int open64(const char* name, int flags, ...) { MODE(flags) return opened(AT_FDCWD, name, flags, mode); }
int openat(int at, const char* name, int flags, ...) { MODE(flags) return opened(at, name, flags, mode); }
int openat64(int at, const char* name, int flags, ...) { MODE(flags) return opened(at, name, flags, mode); }

ssize_t write(int handle, const void* data, size_t size) {
  char path[PATH_MAX];
  if (!path_of(handle, path)) return syscall(SYS_write, handle, data, size);
  int half = 0;
  if (fails(&half)) {
    if (!half || size < 2) return -1;
    size /= 2;  // as a disk does that becomes full: what still fits is written, and what follows is not
  }
  off_t at = lseek(handle, 0, fcntl(handle, F_GETFL) & O_APPEND ? SEEK_END : SEEK_CUR);
  ssize_t done = syscall(SYS_write, handle, data, size);
  if (done > 0) tell("write", path, "", (long)at, data, (size_t)done);
  return done;
}

static int synced(int handle, long number) {
  char path[PATH_MAX];
  int there = path_of(handle, path);
  if (there && fails(NULL)) return -1;
  int done = (int)syscall(number, handle);
  if (there && !done) tell("sync", path, "", 0, NULL, 0);
  return done;
}
int fsync(int handle) { return synced(handle, SYS_fsync); }
int fdatasync(int handle) { return synced(handle, SYS_fdatasync); }

static int cut(int handle, off_t size) {
  char path[PATH_MAX];
  int there = path_of(handle, path);
  if (there && fails(NULL)) return -1;
  int done = (int)syscall(SYS_ftruncate, handle, size);
  if (there && !done) tell("truncate", path, "", (long)size, NULL, 0);
  return done;
}
int ftruncate(int handle, off_t size) { return cut(handle, size); }
int ftruncate64(int handle, off_t size) { return cut(handle, size); }

static int renamed(int from, const char* name, int to, const char* other, unsigned flags) {
  char path[PATH_MAX], target[PATH_MAX];
  int there = folder[0] && path_at(from, name, path) && path_at(to, other, target);
  if (there && fails(NULL)) return -1;
  int done = (int)syscall(SYS_renameat2, from, name, to, other, flags);
  if (there && !done) tell(flags & 2 ? "exchange" : "rename", path, target, 0, NULL, 0);
  return done;
}
int rename(const char* name, const char* other) { return renamed(AT_FDCWD, name, AT_FDCWD, other, 0); }
int renameat2(int from, const char* name, int to, const char* other, unsigned flags) {
  return renamed(from, name, to, other, flags);
}

static int made(int at, const char* name, mode_t mode) {
  char path[PATH_MAX];
  int there = folder[0] && path_at(at, name, path);
  if (there && fails(NULL)) return -1;
  int done = (int)syscall(SYS_mkdirat, at, name, mode);
  if (there && !done) tell("mkdir", path, "", 0, NULL, 0);
  return done;
}
int mkdir(const char* name, mode_t mode) { return made(AT_FDCWD, name, mode); }
int mkdirat(int at, const char* name, mode_t mode) { return made(at, name, mode); }

// Room is made by these: they never fail.
static int gone(int at, const char* name, int flags) {
  char path[PATH_MAX];
  int there = folder[0] && path_at(at, name, path);
  int done = (int)syscall(SYS_unlinkat, at, name, flags);
  if (there && !done) tell("unlink", path, "", 0, NULL, 0);
  return done;
}
int unlink(const char* name) { return gone(AT_FDCWD, name, 0); }
int rmdir(const char* name) { return gone(AT_FDCWD, name, AT_REMOVEDIR); }
int unlinkat(int at, const char* name, int flags) { return gone(at, name, flags); }
