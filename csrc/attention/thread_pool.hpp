#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

namespace lamina::attention {

// Threads that stay, each on a core of its own, and do one job at a time. A job is a number of units that any
// thread may take in any order; units must not depend on the thread. The caller's own thread is one of
// the pool's while it waits in finish(): `threads` cores compute, and never more.
class ThreadPool {
public:
  // `threads` 0: as many as there are cores that this process may use.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // `thread` is below places(), and no two units that run at the same time are given the same.
  using Unit = void (*)(void* context, std::size_t index, std::size_t thread) noexcept;

  // Begins a job and returns. What `context` points to has to live until finish() has returned. `wake` false:
  // finish() does it all, for so little work that waking others would cost more.
  void start(std::size_t units, Unit unit, void* context, bool wake = true);

  // Helps until the job that was started is done.
  void finish();

  int threads() const noexcept { return threads_; }
  // Threads that may take units: the workers, and the caller.
  std::size_t places() const noexcept { return workers_.size() + 1; }

private:
  void work(std::size_t place);
  void stop() noexcept;
  void take_units(std::size_t place);
  void make_room_for_caller();

  int threads_;
  std::vector<std::thread> workers_;
  std::vector<int> cores_;  // of each worker, then those that are left; empty if no thread is pinned

  // The job. Written while no unit is left, published by `left_`.
  Unit unit_ = nullptr;
  void* context_ = nullptr;
  std::size_t units_ = 0;
  bool woken_ = false;
  alignas(64) std::atomic<std::int64_t> left_ = 0;     // units not taken yet; below 0, none
  alignas(64) std::atomic<std::uint32_t> undone_ = 0;  // units that are not finished
  alignas(64) std::atomic<std::uint32_t> jobs_ = 0;    // counts jobs, so that a sleeper notices a new one
  std::atomic<bool> stop_ = false;
};

// The cores that this process may use, as the system numbers them.
std::vector<int> usable_cores();

}  // namespace lamina::attention
