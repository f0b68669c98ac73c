/* Log every fsync and fdatasync of what lies below $SYNCED_ROOT to $SYNC_LOG: which file or folder, what the whole tree
 * looked like when it began, and the file's content. Preloaded into the process that is watched; unsynced.py reads it.
 *
 * A record is text that ends in zero bytes, then bytes:
 *   inode path entries length   (entries) x (inode kind size path)   content
 * An inode goes by its number and time of birth: numbers are used again. Paths are relative; the root's is empty. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static void print_inode(FILE *out, const struct statx *found) {
    fprintf(out, "%llu-%lld.%u", (unsigned long long)found->stx_ino, (long long)found->stx_btime.tv_sec,
            found->stx_btime.tv_nsec);
    fputc(0, out);
}

static int look(int folder, const char *path, int flags, struct statx *found) {
    return statx(folder, path, flags, STATX_BASIC_STATS | STATX_BTIME, found);
}

/* Print the entry at `path`, and all below it; return how many there are. What is deleted meanwhile is left out. */
static long list(FILE *out, const char *root, const char *path) {
    char whole[PATH_MAX];
    struct statx found;
    snprintf(whole, sizeof whole, "%s%s%s", root, *path ? "/" : "", path);
    if (look(AT_FDCWD, whole, AT_SYMLINK_NOFOLLOW, &found) || !(S_ISREG(found.stx_mode) || S_ISDIR(found.stx_mode)))
        return 0;
    print_inode(out, &found);
    fprintf(out, "%c%c%llu%c%s%c", S_ISDIR(found.stx_mode) ? 'd' : 'f', 0, (unsigned long long)found.stx_size, 0, path, 0);
    long count = 1;
    DIR *opened = S_ISDIR(found.stx_mode) ? opendir(whole) : NULL;
    if (!opened)
        return count;
    for (struct dirent *entry; (entry = readdir(opened));) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        char below[PATH_MAX];
        snprintf(below, sizeof below, "%s%s%s", path, *path ? "/" : "", entry->d_name);
        count += list(out, root, below);
    }
    closedir(opened);
    return count;
}

/* Copy the file behind the descriptor, which may be open for writing alone. */
static long copy(FILE *out, const char *link) {
    int file = open(link, O_RDONLY | O_CLOEXEC);
    char part[1 << 16];
    long total = 0, count;
    while (file >= 0 && (count = read(file, part, sizeof part)) > 0)
        total += (long)fwrite(part, 1, (size_t)count, out);
    close(file);
    return total;
}

static void record(FILE *out, const char *root, const char *path, const char *link, const struct statx *found) {
    char *tree = NULL, *content = NULL;
    size_t tree_size = 0, content_size = 0;
    FILE *trees = open_memstream(&tree, &tree_size), *contents = open_memstream(&content, &content_size);
    long entries = list(trees, root, ""), length = S_ISREG(found->stx_mode) ? copy(contents, link) : 0;
    fclose(trees);
    fclose(contents);
    print_inode(out, found);
    fprintf(out, "%s%c%ld%c%ld%c", path, 0, entries, 0, length, 0);
    fwrite(tree, 1, tree_size, out);
    fwrite(content, 1, content_size, out);
    free(tree);
    free(content);
}

static int recorded(int descriptor, const char *name) {
    int (*synced)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    const char *root = getenv("SYNCED_ROOT"), *log = getenv("SYNC_LOG");
    char link[64], path[PATH_MAX];
    struct statx found;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    size_t under = root ? strlen(root) : 0;
    path[length > 0 ? length : 0] = 0;
    if (!root || !log || strncmp(path, root, under) || (path[under] && path[under] != '/') ||
        look(descriptor, "", AT_EMPTY_PATH, &found))
        return synced(descriptor);
    /* One at a time, over all threads and processes: the order of the log is that of the disk. */
    FILE *out = fopen(log, "a");
    if (!out || flock(fileno(out), LOCK_EX)) {
        perror(log);
        abort();
    }
    char *text = NULL;
    size_t size = 0;
    FILE *memory = open_memstream(&text, &size);
    record(memory, root, path[under] ? path + under + 1 : "", link, &found);
    fclose(memory);
    int result = synced(descriptor), failure = errno;
    if (!result)
        fwrite(text, 1, size, out);
    free(text);
    if (fclose(out)) {
        perror(log);
        abort();
    }
    errno = failure;
    return result;
}

int fsync(int descriptor) { return recorded(descriptor, "fsync"); }

int fdatasync(int descriptor) { return recorded(descriptor, "fdatasync"); }
