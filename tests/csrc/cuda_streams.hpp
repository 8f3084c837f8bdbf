#pragma once

// Streams and graphs of fake_cuda for tests, and an end of a channel over the host's memory.

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "cuda_fake_device.hpp"
#include "fhbn/cuda/channel.h"

namespace cuda_streams_test {

using namespace lamina::fhbn;
using namespace lamina::fhbn::cuda;

inline constexpr std::int64_t kUnlimited = std::int64_t{1} << 50;

inline void expect_success(cudaError_t result) { expect(result == cudaSuccess, cudaGetErrorString(result)); }

class Stream {
public:
  Stream() { expect_success(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }

private:
  cudaStream_t stream_ = nullptr;
};

// What some calls put on a stream, to be put there again and again.
class Captured {
public:
  Captured(cudaStream_t stream, const std::function<void()>& calls) : stream_(stream) {
    expect_success(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    calls();
    cudaGraph_t graph = nullptr;
    expect_success(cudaStreamEndCapture(stream, &graph));
    expect_success(cudaGraphInstantiate(&executable_, graph, 0));
    expect_success(cudaGraphDestroy(graph));
  }
  ~Captured() { cudaGraphExecDestroy(executable_); }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;
  void replay() const { expect_success(cudaGraphLaunch(executable_, stream_)); }

private:
  cudaStream_t stream_;
  cudaGraphExec_t executable_ = nullptr;
};

// On the current device.
inline lamina_cuda_channel_end* made_end(const Segment& ring, lamina_cuda_channel_side side,
                                         std::int64_t timeout_ns = kUnlimited) {
  const lamina_cuda_channel channel{ring.memory(), ring.bytes(), side, 0, timeout_ns, "worker 3"};
  lamina_cuda_channel_end* end = nullptr;
  expect_ok(lamina_cuda_channel_create(&channel, &end));
  return end;
}

}  // namespace cuda_streams_test
