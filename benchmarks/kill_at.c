/* Kill this process with SIGKILL at its n-th call that changes what lies below $KILL_ROOT, and log all such calls.
 *
 * A line of $KILL_LOG is a call and the path below the root, written before the call is made. At call $KILL_AT, counted
 * from 1, the process is killed before it is made; of a write, $KILL_SHARE percent of the bytes are written first.
 * Calls that change nothing, such as reads and syncs, are not counted: a kill there leaves what the last change left.
 * Only the process that it is preloaded into is watched, not those that this one starts. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static char root[PATH_MAX];
static long kill_at, share;
static int log_file = -1;
static pid_t watched;
static atomic_long calls;

__attribute__((constructor)) static void begin(void) {
    const char *folder = getenv("KILL_ROOT"), *log = getenv("KILL_LOG"), *at = getenv("KILL_AT"), *part = getenv("KILL_SHARE");
    if (!folder || !log)
        return;
    snprintf(root, sizeof root, "%s", folder);
    kill_at = at ? atol(at) : 0;
    share = part ? atol(part) : 0;
    log_file = open(log, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
    if (log_file < 0) {
        perror(log);
        abort();
    }
    watched = getpid();
    unsetenv("LD_PRELOAD");
}

static void die(void) {
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

static void follow(const char *link, char *path) {
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    path[length > 0 ? length : 0] = 0;
}

static const char *below(const char *path) {
    size_t under = strlen(root);
    return !strncmp(path, root, under) && (!path[under] || path[under] == '/') ? path + under : NULL;
}

/* Count a call on a path, or on the descriptor itself where `path` is NULL; return whether the process is to die now. */
static int counted(const char *call, int folder, const char *path) {
    char link[64], base[PATH_MAX] = "", whole[2 * PATH_MAX];
    int failure = errno;
    if (log_file < 0 || getpid() != watched)
        return 0;
    if (!path || *path != '/') {
        snprintf(link, sizeof link, folder == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", folder);
        follow(link, base);
    }
    snprintf(whole, sizeof whole, "%s%s%s", base, *base && path ? "/" : "", path ? path : "");
    const char *found = below(whole);
    errno = failure;
    if (!found)
        return 0;
    long number = atomic_fetch_add(&calls, 1) + 1;
    if (!kill_at || number <= kill_at)
        dprintf(log_file, "%s %s\n", call, *found ? found + 1 : ".");
    errno = failure;
    return number == kill_at;
}

#define NEXT(name)                         \
    static __typeof__(name) *next;         \
    if (!next)                             \
    next = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

#define OPENS(name, folder, path, flags, ...)          \
    NEXT(name);                                        \
    va_list rest;                                      \
    va_start(rest, flags);                             \
    mode_t mode = va_arg(rest, mode_t);                \
    va_end(rest);                                      \
    if (flags & (O_CREAT | O_TRUNC) && counted(#name, folder, path)) \
        die();                                         \
    return next(__VA_ARGS__, flags, mode)

int open(const char *path, int flags, ...) { OPENS(open, AT_FDCWD, path, flags, path); }
int open64(const char *path, int flags, ...) { OPENS(open64, AT_FDCWD, path, flags, path); }
int openat(int folder, const char *path, int flags, ...) { OPENS(openat, folder, path, flags, folder, path); }
int openat64(int folder, const char *path, int flags, ...) { OPENS(openat64, folder, path, flags, folder, path); }

#define CHANGES(name, type, parameters, arguments, folder, path) \
    type name parameters {                                       \
        NEXT(name);                                              \
        if (counted(#name, folder, path))                        \
            die();                                               \
        return next arguments;                                   \
    }

CHANGES(creat, int, (const char *path, mode_t mode), (path, mode), AT_FDCWD, path)
CHANGES(mkdir, int, (const char *path, mode_t mode), (path, mode), AT_FDCWD, path)
CHANGES(mkdirat, int, (int folder, const char *path, mode_t mode), (folder, path, mode), folder, path)
CHANGES(rename, int, (const char *from, const char *to), (from, to), AT_FDCWD, to)
CHANGES(renameat, int, (int one, const char *from, int other, const char *to), (one, from, other, to), other, to)
CHANGES(link, int, (const char *from, const char *to), (from, to), AT_FDCWD, to)
CHANGES(symlink, int, (const char *from, const char *to), (from, to), AT_FDCWD, to)
CHANGES(unlink, int, (const char *path), (path), AT_FDCWD, path)
CHANGES(unlinkat, int, (int folder, const char *path, int flags), (folder, path, flags), folder, path)
CHANGES(rmdir, int, (const char *path), (path), AT_FDCWD, path)
CHANGES(truncate, int, (const char *path, off_t size), (path, size), AT_FDCWD, path)
CHANGES(truncate64, int, (const char *path, off64_t size), (path, size), AT_FDCWD, path)
CHANGES(ftruncate, int, (int file, off_t size), (file, size), file, NULL)
CHANGES(ftruncate64, int, (int file, off64_t size), (file, size), file, NULL)
CHANGES(writev, ssize_t, (int file, const struct iovec *parts, int count), (file, parts, count), file, NULL)
CHANGES(sendfile, ssize_t, (int to, int from, off_t *at, size_t size), (to, from, at, size), to, NULL)
CHANGES(sendfile64, ssize_t, (int to, int from, off64_t *at, size_t size), (to, from, at, size), to, NULL)

/* fopen's own calls do not come by here. */
CHANGES(fopen, FILE *, (const char *path, const char *mode), (path, mode), AT_FDCWD, strpbrk(mode, "wa") ? path : "/")
CHANGES(fopen64, FILE *, (const char *path, const char *mode), (path, mode), AT_FDCWD, strpbrk(mode, "wa") ? path : "/")

#define WRITES(name, parameters, ...)                                 \
    ssize_t name parameters {                                         \
        NEXT(name);                                                   \
        if (counted(#name, file, NULL)) {                             \
            if (size * share / 100 && next(file, bytes, size * share / 100, ##__VA_ARGS__) < 0) \
                perror(#name);                                        \
            die();                                                    \
        }                                                             \
        return next(file, bytes, size, ##__VA_ARGS__);                \
    }

WRITES(write, (int file, const void *bytes, size_t size))
WRITES(pwrite, (int file, const void *bytes, size_t size, off_t at), at)
WRITES(pwrite64, (int file, const void *bytes, size_t size, off64_t at), at)
