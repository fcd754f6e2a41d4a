/* A TCP proxy in front of a server on this machine. It holds what clients send for a fixed time, and passes what the
 * server sends on at once: the first byte of a response comes later by that time, as from a server that is far away.
 *
 *   delay PORT SERVER_PORT MILLISECONDS THREADS
 *
 * Connecting takes no longer than without the proxy. A client must not send a request before it has the response to the
 * previous one.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { EVENTS = 256, ROOM = 16384, THREADS = 64, PIPE = 1 << 18 };

struct connection {
    int client, server, pipe[2];
    size_t piped;  /* Bytes of the response that are in the pipe. */
    size_t length; /* Bytes of the request that are held. */
    int64_t due;   /* When they are to be sent, in nanoseconds. */
    int is_queued, is_closed;
    struct connection *next; /* In the queue of the thread, or in its list of closed connections. */
    char request[ROOM];
};

struct thread {
    int poll;
    struct connection *first, *last; /* Held requests. All are held equally long, so the first is due first. */
    struct connection *closed;
};

static struct thread threads[THREADS];
static int64_t delay;
static struct sockaddr_in server = {.sin_family = AF_INET};

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* Closes both sides. The memory is freed when no event or queue refers to it any more. */
static void end(struct thread *thread, struct connection *connection) {
    if (connection->is_closed) return;
    connection->is_closed = 1;
    close(connection->client), close(connection->server);
    close(connection->pipe[0]), close(connection->pipe[1]);
    if (connection->is_queued) return;
    connection->next = thread->closed;
    thread->closed = connection;
}

/* Takes bytes of a request from the client. */
static void hold(struct thread *thread, struct connection *connection) {
    for (;;) {
        ssize_t got = recv(connection->client, connection->request + connection->length, ROOM - connection->length, 0);
        if (got < 0) return;
        if (got == 0) {
            end(thread, connection);
            return;
        }
        connection->length += (size_t)got;
        if (connection->is_queued) continue;
        connection->is_queued = 1;
        connection->due = now() + delay;
        connection->next = NULL;
        if (thread->first == NULL) thread->first = connection;
        else thread->last->next = connection;
        thread->last = connection;
    }
}

/* Sends the requests that are due. Returns the nanoseconds until the next one, or -1. */
static int64_t release(struct thread *thread) {
    for (;;) {
        struct connection *connection = thread->first;
        if (connection == NULL) return -1;
        int64_t left = connection->due - now();
        if (left > 0) return left;
        thread->first = connection->next;
        connection->is_queued = 0;
        if (connection->is_closed) {
            free(connection);
            continue;
        }
        /* The send buffer is empty and larger than any request. */
        if (send(connection->server, connection->request, connection->length, 0) != (ssize_t)connection->length)
            end(thread, connection);
        connection->length = 0;
    }
}

/* Moves what the server has sent to the client, without copying it. */
static void pass(struct thread *thread, struct connection *connection) {
    for (;;) {
        if (connection->piped == 0) {
            ssize_t got = splice(connection->server, NULL, connection->pipe[1], NULL, PIPE, SPLICE_F_NONBLOCK);
            if (got < 0) return;
            if (got == 0) {
                end(thread, connection);
                return;
            }
            connection->piped = (size_t)got;
        }
        ssize_t sent =
            splice(connection->pipe[0], NULL, connection->client, NULL, connection->piped, SPLICE_F_NONBLOCK);
        if (sent <= 0) return;
        connection->piped -= (size_t)sent;
    }
}

static void *loop(void *argument) {
    struct thread *thread = argument;
    struct epoll_event events[EVENTS];
    prctl(PR_SET_TIMERSLACK, 1);
    for (;;) {
        int64_t left = release(thread);
        struct timespec time = {left / 1000000000, left % 1000000000};
        int count = epoll_pwait2(thread->poll, events, EVENTS, left < 0 ? NULL : &time, NULL);
        for (int at = 0; at < count; at++) {
            /* Bit 0 of the pointer says that the event is of the server's side. */
            struct connection *connection = (struct connection *)(events[at].data.u64 & ~(uint64_t)1);
            if (connection->is_closed) continue;
            if ((events[at].data.u64 & 1) == 0 && (events[at].events & (EPOLLIN | EPOLLHUP | EPOLLERR)))
                hold(thread, connection);
            if (!connection->is_closed) pass(thread, connection);
        }
        while (thread->closed != NULL) {
            struct connection *connection = thread->closed;
            thread->closed = connection->next;
            free(connection);
        }
    }
    return NULL;
}

static void add(struct thread *thread, struct connection *connection) {
    int one = 1, sockets[2] = {connection->client, connection->server};
    for (size_t side = 0; side < 2; side++) {
        setsockopt(sockets[side], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        fcntl(sockets[side], F_SETFL, O_NONBLOCK);
    }
    for (uint64_t side = 0; side < 2; side++) {
        struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.u64 = (uintptr_t)connection | side};
        epoll_ctl(thread->poll, EPOLL_CTL_ADD, sockets[side], &event);
    }
}

int main(int count, char **arguments) {
    if (count != 5) return 2;
    int port = atoi(arguments[1]), one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    server.sin_port = htons((unsigned short)atoi(arguments[2]));
    server.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    delay = atol(arguments[3]) * 1000000;
    size_t most = (size_t)atol(arguments[4]);
    if (most < 1 || most > THREADS) return 2;
    struct sockaddr_in address = server;
    address.sin_port = htons((unsigned short)port);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0 || listen(listener, 4096) != 0) {
        perror("delay");
        return 1;
    }
    for (size_t number = 0; number < most; number++) {
        pthread_t thread;
        threads[number].poll = epoll_create1(0);
        pthread_create(&thread, NULL, loop, &threads[number]);
    }
    signal(SIGPIPE, SIG_IGN); /* splice has no MSG_NOSIGNAL. */
    printf("ready\n");
    fflush(stdout);
    /* Distributes connections to the threads in turn. */
    for (size_t turn = 0;; turn++) {
        int accepted = accept(listener, NULL, NULL);
        if (accepted < 0) continue;
        struct connection *connection = calloc(1, sizeof *connection);
        connection->client = accepted;
        connection->server = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(connection->server, (struct sockaddr *)&server, sizeof server) != 0 ||
            pipe(connection->pipe) != 0) {
            perror("delay");
            return 1;
        }
        fcntl(connection->pipe[1], F_SETPIPE_SZ, PIPE);
        add(&threads[turn % most], connection);
    }
}
