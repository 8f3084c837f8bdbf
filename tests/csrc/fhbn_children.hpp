#pragma once

// Processes that a test starts, memory that it shares with them, and what it keeps of the system.

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "expect.hpp"

namespace fhbn_test {

// A `T` that children started later share, all of it zero at first.
template <typename T>
class Shared {
public:
  Shared() : memory_(::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    expect(memory_ != MAP_FAILED, "no shared memory");
  }
  ~Shared() { ::munmap(memory_, sizeof(T)); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  T* operator->() const { return static_cast<T*>(memory_); }
  T& operator*() const { return *static_cast<T*>(memory_); }

private:
  void* memory_;
};

// A process that runs `work`, and ends at the latest with this object.
class Child {
public:
  template <typename Work>
  explicit Child(const Work& work) : parent_(::getpid()), pid_(::fork()) {
    expect(pid_ >= 0, "no more processes can be started");
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent_) ::_exit(1);
      work();
      ::_exit(0);
    }
    descriptor_ = static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0));
    expect(descriptor_ >= 0, "a process cannot be watched");
  }
  ~Child() {
    kill();
    if (!ended_) wait(0);
    ::close(descriptor_);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  int descriptor() const { return descriptor_; }
  void kill() const {
    if (!ended_) ::kill(pid_, SIGKILL);
  }

  // Until it stops or ends: the status of waitpid().
  int wait(int options) {
    int status = 0;
    pid_t match = -1;
    while ((match = ::waitpid(pid_, &status, options)) < 0 && errno == EINTR) {
    }
    expect(match == pid_, "a child got lost");
    ended_ = WIFEXITED(status) || WIFSIGNALED(status);
    return status;
  }

  void expect_killed() {
    const int status = wait(0);
    expect(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "a child ended by itself");
  }

private:
  pid_t parent_;
  pid_t pid_;
  int descriptor_ = -1;
  bool ended_ = false;
};

// What a channel could leave behind.
struct Resources {
  std::ptrdiff_t descriptors = 0;
  std::ptrdiff_t rings = 0;  // mapped
  bool named = false;        // one of those in a file system, as shm_open() does

  static Resources now() {
    using Entries = std::filesystem::directory_iterator;
    Resources retained;
    retained.descriptors = std::distance(Entries("/proc/self/fd"), Entries());
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      const bool ring = line.find("lamina-fhbn") != std::string::npos;
      retained.rings += ring;
      retained.named |= ring && line.find("/memfd:") == std::string::npos;
    }
    return retained;
  }

  void expect_no_more_now() const {
    const Resources later = now();
    expect(later.descriptors == descriptors, "file descriptors were left open");
    expect(later.rings == rings, "rings were left mapped");
  }
};

}  // namespace fhbn_test
