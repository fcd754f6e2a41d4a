// A FUSE file system that injects faults on command. It serves a directory read-only.
//
//   faultfs SOURCE MOUNTPOINT        (as root; implements the kernel's FUSE protocol itself and needs no library)
//
// Standard input has one command per line. Each command is answered by a line. SHARE (0 to 1) is the fraction of
// requests that meet the fault.
//   none                       no faults from now on; requests that hang continue
//   slow MILLISECONDS SHARE    requests take that much longer
//   hang SHARE                 requests are not answered until the next command other than count
//   error ERRNO SHARE          requests fail with this error
//   vanish SHARE               names are not found
//   short SHARE                reads return fewer bytes than requested
//   count                      prints the number of faults injected since the last command that started one
// The kernel caches neither names nor pages, so that every access reaches this program, as with a network file system.
// Several threads serve requests, and another one starts whenever all of them might hang.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum kind { NONE, SLOW, HANG, ERROR, VANISH, SHORT };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static enum kind kind = NONE;
static int argument;
static double share;
static unsigned long epoch;
static atomic_ulong injected;
static atomic_int idle;
static int device;

// Paths of the nodes. The number of a node is its index, beginning with 1 for the root.
#define NODES (1 << 20)
static char *paths[NODES];
static uint64_t used = 1;
static pthread_mutex_t nodes = PTHREAD_MUTEX_INITIALIZER;

static uint64_t node_of(const char *path) {
    // Open addressing by the hash of the path. Entries are never removed, because the number of files is bounded.
    uint64_t hash = 1469598103934665603u;
    for (const char *c = path; *c; c++) hash = (hash ^ (unsigned char)*c) * 1099511628211u;
    pthread_mutex_lock(&nodes);
    uint64_t at = 2 + hash % (NODES - 2);
    while (paths[at] && strcmp(paths[at], path)) at = at + 1 < NODES ? at + 1 : 2;
    if (!paths[at]) {
        if (++used > NODES / 2) abort();
        paths[at] = strdup(path);
    }
    pthread_mutex_unlock(&nodes);
    return at;
}

static void reply(uint64_t unique, int error, const void *data, size_t size) {
    struct fuse_out_header out = {.len = sizeof out + (error ? 0 : size), .error = -error, .unique = unique};
    struct iovec parts[2] = {{&out, sizeof out}, {(void *)data, error ? 0 : size}};
    // ENOENT: the caller has given up the request.
    if (writev(device, parts, 2) < 0 && errno != ENOENT) perror("faultfs: reply");
}

static void attributes(const struct stat *from, uint64_t node, struct fuse_attr *to) {
    memset(to, 0, sizeof *to);
    to->ino = node;
    to->size = from->st_size;
    to->blocks = from->st_blocks;
    to->atime = from->st_atim.tv_sec, to->atimensec = from->st_atim.tv_nsec;
    to->mtime = from->st_mtim.tv_sec, to->mtimensec = from->st_mtim.tv_nsec;
    to->ctime = from->st_ctim.tv_sec, to->ctimensec = from->st_ctim.tv_nsec;
    to->mode = from->st_mode;
    to->nlink = from->st_nlink;
    to->uid = from->st_uid, to->gid = from->st_gid;
    to->blksize = 4096;
}

// Decides at random if this request meets the fault, and waits if the fault says so. Returns the error for it, or 0.
static int inject(int by_name) {
    static __thread unsigned seed;
    if (!seed) seed = (unsigned)(uintptr_t)&seed ^ (unsigned)time(NULL) | 1;
    pthread_mutex_lock(&lock);
    enum kind now = kind;
    int value = argument;
    unsigned long first_epoch = epoch;
    int hit = now != NONE && rand_r(&seed) < share * RAND_MAX;
    if (now == VANISH && !by_name) hit = 0;
    if (now == SHORT) hit = 0;
    if (hit) atomic_fetch_add(&injected, 1);
    if (hit && now == HANG)
        while (epoch == first_epoch) pthread_cond_wait(&changed, &lock);
    if (hit && now == SLOW) {
        // Ends early when the fault ends.
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += value / 1000, until.tv_nsec += value % 1000 * 1000000;
        if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
        while (epoch == first_epoch && !pthread_cond_timedwait(&changed, &lock, &until)) {}
    }
    pthread_mutex_unlock(&lock);
    if (!hit) return 0;
    return now == ERROR ? value : now == VANISH ? ENOENT : 0;
}

static int is_short(void) {
    static __thread unsigned seed;
    if (!seed) seed = (unsigned)(uintptr_t)&seed ^ (unsigned)time(NULL) | 1;
    pthread_mutex_lock(&lock);
    int hit = kind == SHORT && rand_r(&seed) < share * RAND_MAX;
    pthread_mutex_unlock(&lock);
    if (hit) atomic_fetch_add(&injected, 1);
    return hit;
}

static void list(uint64_t unique, DIR *dir, const struct fuse_read_in *in) {
    char *buffer = calloc(1, in->size);
    size_t size = 0;
    seekdir(dir, (long)in->offset);
    for (;;) {
        struct dirent *entry = readdir(dir);
        if (!entry) break;
        size_t name = strlen(entry->d_name), whole = FUSE_DIRENT_ALIGN(FUSE_NAME_OFFSET + name);
        if (size + whole > in->size) break;
        struct fuse_dirent *to = (struct fuse_dirent *)(buffer + size);
        to->ino = entry->d_ino;
        to->off = telldir(dir);
        to->namelen = name;
        to->type = entry->d_type;
        memcpy(to->name, entry->d_name, name);
        size += whole;
    }
    reply(unique, 0, buffer, size);
    free(buffer);
}

static void answer(const struct fuse_in_header *in, const void *body) {
    const char *path = in->nodeid == FUSE_ROOT_ID ? paths[1] : in->nodeid < NODES ? paths[in->nodeid] : NULL;
    struct stat found;
    int error;
    switch (in->opcode) {
    case FUSE_INIT: {
        const struct fuse_init_in *request = body;
        struct fuse_init_out out = {.major = 7, .minor = request->minor < 31 ? request->minor : 31};
        out.max_readahead = request->max_readahead;
        out.max_write = 1 << 16;
        out.max_background = 64, out.congestion_threshold = 48;
        out.time_gran = 1;
        // Allows concurrent reads of one file and concurrent look-ups in one directory.
        out.flags = request->flags & (FUSE_ASYNC_READ | FUSE_PARALLEL_DIROPS);
        reply(in->unique, 0, &out, sizeof out);
        return;
    }
    case FUSE_LOOKUP: {
        if ((error = inject(1))) break;
        char below[8192];
        if (snprintf(below, sizeof below, "%s/%s", path, (const char *)body) >= (int)sizeof below) {
            error = ENAMETOOLONG;
            break;
        }
        if (lstat(below, &found)) {
            error = errno;
            break;
        }
        struct fuse_entry_out out = {.nodeid = node_of(below), .generation = 1};
        attributes(&found, out.nodeid, &out.attr);
        reply(in->unique, 0, &out, sizeof out);
        return;
    }
    case FUSE_GETATTR: {
        // The attributes of the root meet no fault, so that the mount point stays accessible.
        if (in->nodeid != FUSE_ROOT_ID && (error = inject(0))) break;
        if (lstat(path, &found)) {
            error = errno;
            break;
        }
        struct fuse_attr_out out = {0};
        attributes(&found, in->nodeid, &out.attr);
        reply(in->unique, 0, &out, sizeof out);
        return;
    }
    case FUSE_OPEN: {
        if ((error = inject(1))) break;
        int file = open(path, O_RDONLY | O_CLOEXEC);
        if (file < 0) {
            error = errno;
            break;
        }
        // Bypasses the page cache: after a short read, the kernel would fill the page with zeros, which a reader cannot
        // detect.
        struct fuse_open_out out = {.fh = file, .open_flags = FOPEN_DIRECT_IO};
        reply(in->unique, 0, &out, sizeof out);
        return;
    }
    case FUSE_READ: {
        const struct fuse_read_in *read = body;
        if ((error = inject(0))) break;
        char *buffer = malloc(read->size);
        ssize_t got = pread((int)read->fh, buffer, read->size, (off_t)read->offset);
        if (got > 1 && is_short()) got /= 2;
        reply(in->unique, got < 0 ? errno : 0, buffer, got < 0 ? 0 : got);
        free(buffer);
        return;
    }
    case FUSE_RELEASE:
        close((int)((const struct fuse_release_in *)body)->fh);
        error = 0;
        break;
    case FUSE_OPENDIR: {
        if ((error = inject(1))) break;
        DIR *dir = opendir(path);
        if (!dir) {
            error = errno;
            break;
        }
        struct fuse_open_out out = {.fh = (uint64_t)(uintptr_t)dir};
        reply(in->unique, 0, &out, sizeof out);
        return;
    }
    case FUSE_READDIR:
        if ((error = inject(0))) break;
        list(in->unique, (DIR *)(uintptr_t)((const struct fuse_read_in *)body)->fh, body);
        return;
    case FUSE_RELEASEDIR:
        closedir((DIR *)(uintptr_t)((const struct fuse_release_in *)body)->fh);
        error = 0;
        break;
    case FUSE_STATFS: {
        struct fuse_statfs_out out = {.st = {.bsize = 4096, .namelen = 255, .frsize = 4096}};
        reply(in->unique, 0, &out, sizeof out);
        return;
    }
    case FUSE_FLUSH:
        error = 0;
        break;
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT:
        return;
    default:
        error = ENOSYS;
    }
    reply(in->unique, error, NULL, 0);
}

static void *serve(void *unused) {
    (void)unused;
    size_t size = 1 << 18;
    char *buffer = malloc(size);
    atomic_fetch_add(&idle, 1);
    for (;;) {
        ssize_t got = read(device, buffer, size);
        if (got < 0 && (errno == EINTR || errno == EAGAIN || errno == ENOENT)) continue;
        if (got < 0) exit(errno == ENODEV ? 0 : 1);
        pthread_t thread;
        // Ensures that another thread listens while this one may hang.
        if (atomic_fetch_sub(&idle, 1) == 1 && !pthread_create(&thread, NULL, serve, NULL)) pthread_detach(thread);
        answer((struct fuse_in_header *)buffer, buffer + sizeof(struct fuse_in_header));
        if (atomic_fetch_add(&idle, 1) >= 16) {
            atomic_fetch_sub(&idle, 1);
            free(buffer);
            return NULL;
        }
    }
}

static void set_fault(enum kind new_kind, int value, double probability) {
    pthread_mutex_lock(&lock);
    kind = new_kind, argument = value, share = probability, epoch++;
    if (new_kind != NONE) atomic_store(&injected, 0);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

int main(int count, char **arguments) {
    if (count != 3) return fprintf(stderr, "usage: faultfs SOURCE MOUNTPOINT\n"), 2;
    paths[1] = realpath(arguments[1], NULL);
    device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    if (!paths[1] || device < 0) return perror("faultfs"), 1;
    char options[128];
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions", device);
    if (mount("faultfs", arguments[2], "fuse.faultfs", MS_NOSUID | MS_NODEV | MS_RDONLY, options))
        return perror("faultfs: mount"), 1;
    pthread_t thread;
    pthread_create(&thread, NULL, serve, NULL);
    char line[256], name[32];
    printf("mounted\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        int value = 0;
        double probability = 1;
        if (sscanf(line, "%31s", name) != 1) continue;
        if (!strcmp(name, "none")) set_fault(NONE, 0, 0);
        else if (sscanf(line, "slow %d %lf", &value, &probability) >= 1) set_fault(SLOW, value, probability);
        else if (sscanf(line, "error %d %lf", &value, &probability) >= 1) set_fault(ERROR, value, probability);
        else if (!strcmp(name, "hang")) sscanf(line, "hang %lf", &probability), set_fault(HANG, 0, probability);
        else if (!strcmp(name, "vanish")) sscanf(line, "vanish %lf", &probability), set_fault(VANISH, 0, probability);
        else if (!strcmp(name, "short")) sscanf(line, "short %lf", &probability), set_fault(SHORT, 0, probability);
        else if (strcmp(name, "count")) { printf("unknown command\n"); fflush(stdout); continue; }
        printf("%lu\n", atomic_load(&injected));
        fflush(stdout);
    }
    umount2(arguments[2], MNT_DETACH);
    return 0;
}
