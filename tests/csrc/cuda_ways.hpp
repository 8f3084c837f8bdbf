#pragma once

// One way between the devices of two workers, for tests: over a ring in shared memory, or over softnics.

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "cuda_nic.hpp"
#include "cuda_streams.hpp"

namespace cuda_ways_test {

using namespace cuda_streams_test;
using cuda_nic_test::DeviceSide, cuda_nic_test::NicSide, cuda_nic_test::kNearWrap,
    cuda_nic_test::kMessageBytes;
using Buffer = lamina_cuda_channel_buffer;

// An end as engine/lamina/fhbn/device.py has it: with what posts for it if a NIC carries its messages.
class End {
public:
  End(const Segment& ring, lamina_cuda_channel_side side, std::int64_t timeout_ns)
      : end_(made_end(ring, side, timeout_ns)) {}
  explicit End(std::unique_ptr<DeviceSide> with_nic)
      : with_nic_(std::move(with_nic)), end_(with_nic_->end), nic_(with_nic_->nic) {}
  ~End() { close(); }
  End(const End&) = delete;
  End& operator=(const End&) = delete;

  void send(const std::vector<Buffer>& parts, cudaStream_t stream) const {
    expect_ok(lamina_cuda_channel_send(end_, parts.data(), static_cast<int>(parts.size()), stream));
  }
  void receive(const std::vector<Buffer>& into, cudaStream_t stream) const {
    expect_ok(lamina_cuda_channel_recv(end_, into.data(), static_cast<int>(into.size()), stream));
  }
  // The message stays where it is.
  void await(cudaStream_t stream) const { expect_ok(lamina_cuda_channel_poll(end_, stream)); }
  // Until the NIC has done all that was posted.
  void drain(cudaStream_t stream) const {
    if (nic_ != nullptr) expect_ok(lamina_cuda_nic_poll(nic_, stream));
  }

  lamina_cuda_status check() const {
    const lamina_cuda_status status = lamina_cuda_channel_check(end_);
    if (nic_ == nullptr || (status != LAMINA_CUDA_OK && status != LAMINA_CUDA_CHANNEL_LATE)) return status;
    const lamina_cuda_status nic_status = lamina_cuda_nic_check(nic_);
    return nic_status != LAMINA_CUDA_OK ? nic_status : status;
  }

  void abort() const {
    expect_ok(lamina_cuda_channel_abort(end_));
    if (nic_ != nullptr) expect_ok(lamina_cuda_nic_abort(nic_));
  }

  void close() {
    if (with_nic_ != nullptr) {
      with_nic_->lent.close(with_nic_->close());
      with_nic_.reset();
    } else if (end_ != nullptr) {
      expect_ok(lamina_cuda_channel_destroy(end_));
    }
    end_ = nullptr;
    nic_ = nullptr;
  }

private:
  std::unique_ptr<DeviceSide> with_nic_;
  lamina_cuda_channel_end* end_;
  lamina_cuda_nic_end* nic_ = nullptr;
};

struct Way {
  Way(bool over_nics, int from_device, int to_device, std::int64_t timeout_ns) {
    constexpr std::uint32_t kSlots = 2, kBlocks = 16;
    if (over_nics) {
      mirror.emplace(kSlots, rdma::SoftHabits{});
      home.emplace(kSlots, rdma::SoftHabits{});
      there = mirror->nic.connect(kBlocks, home->as_peer());
      back = home->nic.connect(kBlocks, mirror->as_peer());
    }
    ring = over_nics ? home->segment : Segment::create({kMessageBytes, kSlots, 7, kNearWrap});
    const auto make = [&](std::optional<End>& end, int device, lamina_cuda_channel_side side) {
      const bool sends = side == LAMINA_CUDA_CHANNEL_SENDS;
      expect_success(cudaSetDevice(device));
      if (over_nics) {
        end.emplace(std::make_unique<DeviceSide>(sends ? *mirror : *home, sends ? *there : *back,
                                                 (sends ? *home : *mirror).remote(), side, timeout_ns));
      } else {
        end.emplace(*ring, side, timeout_ns);
      }
    };
    make(sender, from_device, LAMINA_CUDA_CHANNEL_SENDS);
    make(receiver, to_device, LAMINA_CUDA_CHANNEL_RECEIVES);
  }

  std::optional<NicSide> mirror, home;
  std::optional<rdma::QueuePair> there, back;
  std::shared_ptr<Segment> ring;  // the receiver's
  std::optional<End> sender, receiver;
};

}  // namespace cuda_ways_test
