// How the ranks of a communicator find each other and move bytes.
#include "nccl.h"
#include "turns.h"
#include <cstddef>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

uint64_t Comm::ticket() {
    std::lock_guard<std::mutex> l(m);
    return tickets++;
}
bool Comm::turn(uint64_t ticket) {
    std::unique_lock<std::mutex> l(m);
    while (serving != ticket && !aborted) cv.wait_for(l, std::chrono::milliseconds(20));
    return !aborted;
}
void Comm::next() {
    std::lock_guard<std::mutex> l(m);
    serving++;
    cv.notify_all();
}
void Comm::progress(int to) {
    int was = IN_PROGRESS;
    state.compare_exchange_strong(was, to);
}
Comm::~Comm() {
    for (int fd : fds)
        if (fd >= 0) close(fd);
}

bool exchange(Comm &c, std::vector<Transfer> &all, Turn *turn) {
    std::vector<std::deque<Transfer *>> out(c.n), in(c.n);
    size_t left = 0;
    for (auto &t : all) {
        t.head.bytes = t.bytes;
        (t.send ? out : in)[t.peer].push_back(&t);
        left++;
    }
    auto mismatch = [&](const Head &a, const Head &b) {
        if (a.what == b.what && a.type == b.type && a.bytes == b.bytes) return false;
        say("nccl: rank %d expects operation %x type %u of %zu bytes, and gets %x type "
            "%u of %zu bytes",
            c.rank, a.what, a.type, (size_t)a.bytes, b.what, b.type, (size_t)b.bytes);
        c.fail(INVALID_USAGE);
        return true;
    };
    while (!out[c.rank].empty() && !in[c.rank].empty()) {
        auto *a = out[c.rank].front(), *b = in[c.rank].front();
        if (mismatch(b->head, a->head)) return false;
        memmove(b->data, a->data, a->bytes);
        out[c.rank].pop_front();
        in[c.rank].pop_front();
        left -= 2;
    }
    while (left) {
        if (c.aborted) return false;
        std::vector<pollfd> polls;
        std::vector<int> who;
        for (int p = 0; p < c.n; p++) {
            if (p == c.rank) continue;
            short events = (out[p].empty() ? 0 : POLLOUT) | (in[p].empty() ? 0 : POLLIN);
            if (events) {
                polls.push_back({c.fds[p], events, 0});
                who.push_back(p);
            }
        }
        if (polls.empty()) {
            usleep(1000);
            continue;
        } // a send to oneself without its receive: for ever
        // Without a turn on a device it is the host that waits.
        if (poll(polls.data(), polls.size(), turn ? 1 : 20) <= 0) {
            if (turn) turn->give_way();
            continue;
        }
        for (size_t i = 0; i < polls.size(); i++) {
            int p = who[i];
            if (polls[i].revents & POLLIN ||
                (polls[i].revents & (POLLHUP | POLLERR) && !in[p].empty())) {
                Transfer &t = *in[p].front();
                ssize_t k;
                if (t.done < sizeof(Head))
                    k = recv(c.fds[p], (char *)&t.got + t.done, sizeof(Head) - t.done,
                             MSG_DONTWAIT);
                else
                    k = recv(c.fds[p], t.data + (t.done - sizeof(Head)),
                             t.bytes + sizeof(Head) - t.done, MSG_DONTWAIT);
                if (k == 0 || (k < 0 && errno != EAGAIN && errno != EINTR)) {
                    c.fail(REMOTE);
                    return false;
                }
                if (k > 0) t.done += k;
                if (t.done == sizeof(Head) && mismatch(t.head, t.got)) return false;
                if (t.done == sizeof(Head) + t.bytes) {
                    in[p].pop_front();
                    left--;
                }
            }
            if (polls[i].revents & (POLLOUT | POLLHUP | POLLERR) && !out[p].empty()) {
                Transfer &t = *out[p].front();
                ssize_t k;
                if (t.done < sizeof(Head))
                    k = send(c.fds[p], (char *)&t.head + t.done, sizeof(Head) - t.done,
                             MSG_DONTWAIT | MSG_NOSIGNAL);
                else
                    k = send(c.fds[p], t.data + (t.done - sizeof(Head)),
                             std::min<size_t>(t.bytes + sizeof(Head) - t.done, 1 << 20),
                             MSG_DONTWAIT | MSG_NOSIGNAL);
                if (k < 0 && errno != EAGAIN && errno != EINTR) {
                    c.fail(REMOTE);
                    return false;
                }
                if (k > 0) t.done += k;
                if (t.done == sizeof(Head) + t.bytes) {
                    out[p].pop_front();
                    left--;
                }
            }
        }
    }
    return true;
}
std::vector<Transfer> everybody(Comm &c, uint32_t what, char *mine, size_t bytes, char *all) {
    std::vector<Transfer> t;
    for (int p = 0; p < c.n; p++) {
        t.push_back({p, true, mine, bytes, {what, 0, 0}});
        t.push_back({p, false, all + p * bytes, bytes, {what, 0, 0}});
    }
    return t;
}

// ---- joining
// ----------------------------------------------------------------------------------------------
static socklen_t address(sockaddr_un &a, const std::string &id, int rank) {
    memset(&a, 0, sizeof a);
    a.sun_family = AF_UNIX;
    int k = snprintf(a.sun_path + 1, sizeof a.sun_path - 1, "softgpu-%s-%d", id.c_str(), rank);
    return (socklen_t)(offsetof(sockaddr_un, sun_path) + 1 + k);
}
int join(Comm &c) {
    c.fds.assign(c.n, -1);
    sockaddr_un a;
    socklen_t len = address(a, c.id, c.rank);
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (bind(listener, (sockaddr *)&a, len) || listen(listener, 64)) {
        close(listener);
        return SYSTEM;
    }
    int missing = c.n - 1 - c.rank;
    for (int p = 0; p < c.rank;) {
        if (c.aborted) {
            close(listener);
            return INTERNAL;
        }
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        len = address(a, c.id, p);
        if (connect(fd, (sockaddr *)&a, len)) {
            close(fd);
            usleep(2000);
            continue;
        }
        int32_t me = c.rank;
        if (send(fd, &me, 4, MSG_NOSIGNAL) != 4) {
            close(fd);
            usleep(2000);
            continue;
        }
        c.fds[p++] = fd;
    }
    while (missing) {
        if (c.aborted) {
            close(listener);
            return INTERNAL;
        }
        pollfd p{listener, POLLIN, 0};
        if (poll(&p, 1, 20) <= 0) continue;
        int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
        if (fd < 0) continue;
        int32_t who = -1;
        if (recv(fd, &who, 4, MSG_WAITALL) != 4 || who <= c.rank || who >= c.n) {
            close(fd);
            continue;
        }
        c.fds[who] = fd;
        missing--;
    }
    close(listener);
    struct Seat {
        char host[60];
        int device;
    } mine{};
    std::vector<Seat> all(c.n);
    const char *host = getenv("NCCL_HOSTID");
    snprintf(mine.host, sizeof mine.host, "%s", host ? host : "");
    mine.device = c.ctx->device;
    auto t = everybody(c, 0xbeef, (char *)&mine, sizeof mine, (char *)all.data());
    if (!exchange(c, t)) return c.state == IN_PROGRESS ? (int)INTERNAL : c.state.load();
    for (int p = 0; p < c.n; p++)
        if (p != c.rank && !memcmp(&all[p], &mine, sizeof mine)) {
            say("nccl: Duplicate GPU detected : rank %d and rank %d both on CUDA "
                "device %d",
                c.rank, p, mine.device);
            return INVALID_USAGE;
        }
    return SUCCESS;
}
