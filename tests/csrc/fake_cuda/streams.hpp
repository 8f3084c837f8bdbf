#pragma once

// What is put on a stream of fake_cuda is done at once, by the thread of the host that puts it there: two
// streams that work side by side are two threads. Who waits for a device waits for what other threads are
// doing for it, as it would for a real one. Nothing here knows the order of what one thread puts on two
// streams: there is no other than its own.

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

struct CUstream_st {};
using cudaStream_t = CUstream_st*;

namespace fake_cuda {

using Work = std::function<void()>;
using Graph = std::vector<Work>;

inline thread_local int device = 0;  // the current one

// A thread's work on a stream, while it lasts.
struct Running {
  int device;
  cudaStream_t stream;
};

class Devices {
public:
  void run(cudaStream_t stream, const Work& work) {
    std::unique_lock lock(mutex_);
    const auto own = running_.insert({begun_++, {device, stream}}).first;
    lock.unlock();
    work();
    lock.lock();
    running_.erase(own);
    ended_.notify_all();
  }

  // Until what is running by now has ended, where it is among these; not for what begins meanwhile.
  template <typename Among>
  void wait_for(const Among& among) {
    std::unique_lock lock(mutex_);
    const std::uint64_t later = begun_;
    ended_.wait(lock, [&] {
      return std::none_of(running_.begin(), running_.lower_bound(later),
                          [&](const auto& one) { return among(one.second); });
    });
  }

  int running(int device) {
    const std::lock_guard lock(mutex_);
    return static_cast<int>(std::count_if(running_.begin(), running_.end(),
                                          [&](const auto& one) { return one.second.device == device; }));
  }

private:
  std::mutex mutex_;
  std::condition_variable ended_;
  std::uint64_t begun_ = 0;
  std::map<std::uint64_t, Running> running_;  // by when they began
};

inline Devices devices;

// What this thread captures, if it does.
struct Capture {
  cudaStream_t stream = nullptr;
  std::unique_ptr<Graph> graph;
};
inline thread_local Capture capture;

inline void put(cudaStream_t stream, Work work) {
  if (capture.graph != nullptr && stream == capture.stream) {
    capture.graph->push_back(std::move(work));
  } else {
    devices.run(stream, work);
  }
}

}  // namespace fake_cuda
