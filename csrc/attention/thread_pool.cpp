#include "attention/thread_pool.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

namespace lamina::attention {

namespace {

// About ten microseconds: longer than it takes from one job of a layer to its next, and so little that it
// costs the machine's other threads, torch's among them, nothing that shows.
constexpr int kSpins = 1000;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

void pin(std::thread& thread, int core) {
#if defined(__linux__)
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(core, &cores);
  // Being refused, as in some containers, costs speed only.
  pthread_setaffinity_np(thread.native_handle(), sizeof cores, &cores);
#else
  (void)thread, (void)core;
#endif
}

}  // namespace

std::vector<int> usable_cores() {
  std::vector<int> usable;
#if defined(__linux__)
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof cores, &cores) == 0) {
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &cores)) usable.push_back(core);
    }
  }
#endif
  if (usable.empty()) {
    for (unsigned core = 0; core < std::max(1u, std::thread::hardware_concurrency()); ++core) {
      usable.push_back(static_cast<int>(core));
    }
  }
  return usable;
}

ThreadPool::ThreadPool(int threads) : cores_(usable_cores()) {
  if (threads < 0)
    throw std::invalid_argument("threads is " + std::to_string(threads) + " but cannot be negative");
  threads_ = threads == 0 ? static_cast<int>(cores_.size()) : threads;
  // One worker even if only one thread shall compute: a job has to go on while the caller does something
  // else.
  const std::size_t workers = static_cast<std::size_t>(std::max(1, threads_ - 1));
  const bool pinned = workers < cores_.size();
  try {
    for (std::size_t i = 0; i < workers; ++i) {
      workers_.emplace_back([this, i] { work(i); });
      if (pinned) pin(workers_.back(), cores_[i]);
    }
  } catch (...) {
    stop();
    throw;
  }
  if (!pinned) cores_.clear();
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() noexcept {
  stop_ = true;
  jobs_.fetch_add(1);
  jobs_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::start(std::size_t units, Unit unit, void* context, bool wake) {
  unit_ = unit;
  context_ = context;
  units_ = units;
  woken_ = wake;
  undone_.store(static_cast<std::uint32_t>(units), std::memory_order_relaxed);
  left_.store(static_cast<std::int64_t>(units), std::memory_order_release);
  if (!wake || units == 0) return;
  make_room_for_caller();
  jobs_.fetch_add(1, std::memory_order_release);
  jobs_.notify_all();
}

void ThreadPool::finish() {
  if (threads_ > 1 || !woken_) take_units(workers_.size());
  for (int spin = 0; spin < kSpins && undone_.load(std::memory_order_acquire) != 0; ++spin) relax();
  for (auto undone = undone_.load(std::memory_order_acquire); undone != 0;
       undone = undone_.load(std::memory_order_acquire)) {
    undone_.wait(undone, std::memory_order_acquire);
  }
}

// A worker may come late and find the next job instead of the one it was woken for. That is as good: a thread
// that has taken a unit reads the job of that unit, because a job does not end before its units.
void ThreadPool::take_units(std::size_t place) {
  while (left_.load(std::memory_order_relaxed) > 0) {
    const std::int64_t left = left_.fetch_sub(1, std::memory_order_acquire);
    if (left <= 0) return;
    unit_(context_, units_ - static_cast<std::size_t>(left), place);
    if (undone_.fetch_sub(1, std::memory_order_acq_rel) == 1) undone_.notify_all();
  }
}

void ThreadPool::work(std::size_t place) {
  std::uint32_t observed = 0;
  for (;;) {
    for (int spin = 0; spin < kSpins && jobs_.load(std::memory_order_acquire) == observed; ++spin) relax();
    jobs_.wait(observed, std::memory_order_acquire);
    observed = jobs_.load(std::memory_order_acquire);
    if (stop_.load()) return;
    take_units(place);
  }
}

// The system does not move a pinned worker out of the way of the thread that calls, so that both would share
// one core while another is idle. The worker whose core the caller is on moves to the core that is left.
void ThreadPool::make_room_for_caller() {
#if defined(__linux__)
  if (cores_.empty()) return;
  const int here = sched_getcpu();
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    if (cores_[i] != here) continue;
    std::swap(cores_[i], cores_[workers_.size()]);
    pin(workers_[i], cores_[i]);
    return;
  }
#endif
}

}  // namespace lamina::attention
