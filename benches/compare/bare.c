/* A server that sends the same response, copied from another server, for every request. Its requests per second are an
 * upper bound for any server that sends these bytes with the same system calls.
 *
 *   bare PORT THREADS ANSWER COPIES [PATH]
 *
 * ANSWER is a file with head and body. COPIES copies of it are held in memory and sent in turn, so that as much memory
 * is read as by a server that sends as many different files. With PATH, the server calls statx on that file before each
 * response, as is necessary for a server that never sends outdated data.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { EVENTS = 512, ROOM = 16384, THREADS = 64 };

struct connection {
    int socket;
    const char *answer;
    size_t left; /* Number of bytes of the response that are not sent yet. */
};

static int port;
static size_t length, head_bytes, copies;
static char *answers;
static const char *looked_at;

/* Sends the rest of the response. Returns 1 if all of it is sent. */
static int sent(struct connection *connection) {
    while (connection->left > 0) {
        size_t from = length - connection->left;
        /* Two parts, because a real server has head and body in separate buffers. */
        size_t of_head = from < head_bytes ? head_bytes - from : 0;
        char *rest = (char *)connection->answer + from;
        struct iovec parts[2] = {{rest, of_head}, {rest + of_head, connection->left - of_head}};
        ssize_t written = writev(connection->socket, parts, 2);
        if (written < 0) return 0;
        connection->left -= (size_t)written;
    }
    return 1;
}

static void serve(struct connection *connection, size_t *turn) {
    char request[ROOM];
    for (;;) {
        if (!sent(connection)) return;
        ssize_t got = recv(connection->socket, request, ROOM, 0);
        if (got <= 0) {
            if (got == 0) close(connection->socket), free(connection);
            return;
        }
        struct statx facts;
        /* The result is ignored: the call costs about the same if the file does not exist. */
        if (looked_at != NULL) (void)!statx(AT_FDCWD, looked_at, AT_STATX_DONT_SYNC, STATX_BASIC_STATS, &facts);
        connection->left = length;
        connection->answer = answers + length * (++*turn % copies);
        if (!sent(connection)) return;
        if (got < ROOM) return;
    }
}

static int listening(void) {
    int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0 || listen(listener, 4096) != 0) {
        perror("bare");
        exit(1);
    }
    return listener;
}

static int queues[THREADS];

static void *loop(void *number) {
    int queue = queues[(size_t)number];
    struct epoll_event events[EVENTS];
    size_t turn = (size_t)number;
    for (;;) {
        int count = epoll_wait(queue, events, EVENTS, -1);
        for (int at = 0; at < count; at++) serve(events[at].data.ptr, &turn);
    }
    return NULL;
}

static void read_answer(const char *path) {
    FILE *file = fopen(path, "rb");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0 || (length = (size_t)ftell(file)) == 0) {
        perror(path);
        exit(1);
    }
    rewind(file);
    answers = malloc(length * copies);
    if (answers == NULL || fread(answers, 1, length, file) != length) exit(1);
    fclose(file);
    for (size_t at = 1; at < copies; at++) memcpy(answers + at * length, answers, length);
    char *end = memmem(answers, length, "\r\n\r\n", 4);
    head_bytes = end == NULL ? length : (size_t)(end + 4 - answers);
}

int main(int count, char **arguments) {
    if (count < 5) return 2;
    port = atoi(arguments[1]);
    long threads = atol(arguments[2]);
    copies = (size_t)atol(arguments[4]);
    if (threads < 1 || threads > THREADS || copies < 1) return 2;
    read_answer(arguments[3]);
    looked_at = count > 5 ? arguments[5] : NULL;
    for (size_t number = 0; number < (size_t)threads; number++) {
        pthread_t thread;
        queues[number] = epoll_create1(0);
        pthread_create(&thread, NULL, loop, (void *)number);
    }
    int listener = listening(), flags = fcntl(listener, F_GETFL), one = 1;
    fcntl(listener, F_SETFL, flags & ~O_NONBLOCK);
    printf("ready\n");
    fflush(stdout);
    /* Distributes connections to the threads in turn. */
    for (size_t turn = 0;; turn++) {
        int accepted = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
        if (accepted < 0) continue;
        setsockopt(accepted, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        struct connection *connection = calloc(1, sizeof *connection);
        connection->socket = accepted;
        struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = connection};
        epoll_ctl(queues[turn % (size_t)threads], EPOLL_CTL_ADD, accepted, &event);
    }
}
