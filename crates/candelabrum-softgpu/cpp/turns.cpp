// Turns of processes on a device: a lock on a file. Another file, the gate, is held while a process
// waits, so that the one which has the device cannot take it again once its slice is over.
#include "turns.h"
#include <chrono>
#include <fcntl.h>
#include <map>
#include <mutex>
#include <sys/file.h>
#include <unistd.h>

namespace {
using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

bool shared() {
    static const bool on = env("SOFTGPU_SHARED", 0);
    return on;
}
// How long a process may go on while another one waits, and how long each change takes.
microseconds slice() {
    static const long us = env("SOFTGPU_SLICE_US", 2000);
    return microseconds(us);
}

int open_file(int device, const char *suffix) {
    char path[100];
    snprintf(path, sizeof path, "/tmp/softgpu-%u-device-%d%s", getuid(), device, suffix);
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) say("cannot open %s", path);
    return file;
}

// A process that is stopped keeps its locks, but a GPU goes on with the other processes.
void lock(int file) {
    const auto end = Clock::now() + std::chrono::seconds(1);
    while (flock(file, LOCK_EX | LOCK_NB) && Clock::now() < end) usleep(50);
}

struct Shared {
    int file, gate;
    std::mutex m;
    int users = 0; // threads of this process
    Clock::time_point since{};

    explicit Shared(int device) : file(open_file(device, "")), gate(open_file(device, ".gate")) {}

    void begin() {
        std::lock_guard<std::mutex> l(m);
        if (users++) return;
        bool in_slice = Clock::now() < since + slice();
        if (!in_slice) lock(gate);
        lock(file);
        if (!in_slice) flock(gate, LOCK_UN);
        pid_t last = 0;
        bool changes = pread(file, &last, sizeof last, 0) != sizeof last || last != getpid();
        if (changes) {
            TRACE("the device changes to this process");
            usleep(slice().count());
            last = getpid();
            if (pwrite(file, &last, sizeof last, 0) < 0) say("cannot note whose turn it is");
        }
        if (changes || !in_slice) since = Clock::now();
    }
    void end() {
        std::lock_guard<std::mutex> l(m);
        if (--users == 0) flock(file, LOCK_UN);
    }
};
Shared &shared_device(int device) {
    static std::mutex m;
    static auto &all = *new std::map<int, Shared *>;
    std::lock_guard<std::mutex> l(m);
    auto *&one = all[device];
    if (!one) one = new Shared(device);
    return *one;
}
} // namespace

Turn::Turn(int device) : device(device) {
    if (shared()) shared_device(device).begin();
}
Turn::~Turn() {
    if (shared()) shared_device(device).end();
}
void Turn::give_way() {
    if (!shared()) return;
    shared_device(device).end();
    usleep(200);
    shared_device(device).begin();
}
