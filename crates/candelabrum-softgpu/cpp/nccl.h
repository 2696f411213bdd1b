// libnccl: ranks are processes (or threads) of one machine that talk over Unix sockets.
//
// Like the real one: calls answer ncclInProgress where `blocking = 0`, and launch later; an
// operation that cannot go on holds up its stream until the communicator is aborted; a rank that
// died is an asynchronous error; two ranks of one host on one GPU are refused; a communicator that
// is not ready refuses calls.
#pragma once
#include "memory.h"
#include "streams.h"

enum {
    SUCCESS,
    UNHANDLED_CUDA,
    SYSTEM,
    INTERNAL,
    INVALID_ARGUMENT,
    INVALID_USAGE,
    REMOTE,
    IN_PROGRESS
};

class Turn;
struct Comm {
    std::string id;
    int rank, n;
    bool blocking = true;
    Context *ctx;
    int splits = 0;
    std::vector<int> fds; // to the other ranks
    std::atomic<int> state{SUCCESS};
    std::atomic<bool> aborted{false}, finalized{false};
    std::mutex m;
    std::condition_variable cv;

    // Operations run one after the other, in the order of their tickets.
    uint64_t ticket();
    bool turn(uint64_t ticket); // false after an abort
    void next();
    // The end of a call that was in progress. Does not hide a failure.
    void progress(int to);
    void fail(int code) { state = code; }
    ~Comm();

private:
    uint64_t tickets = 0, serving = 0;
};
using CommP = std::shared_ptr<Comm>;
struct Handle {
    CommP c;
};
typedef Handle *ncclComm_t;

// Notes the text for ncclGetLastError and returns the code.
int refuse(int code, const std::string &text);
// The code of a communicator that cannot be called now, or 0.
int ready(ncclComm_t h);
// Runs the job: at once for a blocking communicator, otherwise a little later on a thread.
int in_background(const CommP &c, std::function<int()> job);

// What is sent before the bytes, so that ranks which call different things find out.
struct Head {
    uint32_t what, type;
    uint64_t bytes;
};
struct Transfer {
    int peer;
    bool send;
    char *data;
    size_t bytes;
    Head head;
    size_t done = 0; // bytes of the head and the data
    Head got{};
};
// Moves everything, on the device if there is a turn; false where it cannot, with the reason in the
// communicator's state. Sends to oneself are matched here.
bool exchange(Comm &c, std::vector<Transfer> &all, Turn *turn = nullptr);
// `mine` of every rank, for every rank.
std::vector<Transfer> everybody(Comm &c, uint32_t what, char *mine, size_t bytes, char *all);
// Connects the communicator's ranks; gives the result.
int join(Comm &c);
