#pragma once

// Device's ends of channels over softnics, for tests: the library's calls over a runtime whose device is the
// emulation.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda_fake_device.hpp"
#include "fhbn/cuda/channel.h"
#include "fhbn/cuda/nic.h"
#include "fhbn/cuda/ring.h"
#include "fhbn/rdma/device_ring.hpp"
#include "fhbn/rdma/lent_queue.hpp"
#include "softnic/soft_writer.hpp"
#include "softnic_pair.hpp"

namespace cuda_nic_test {

using namespace lamina::fhbn;
using namespace lamina::fhbn::cuda;

inline constexpr std::uint64_t kNearWrap = 0 - std::uint64_t{3};
inline constexpr std::uint64_t kMessageBytes = 20'000;
inline constexpr std::int64_t kForever = std::int64_t{1} << 50;

// Whether rings of a device's ends lie in its memory from now on, or in the host's.
inline bool rings_on_device = false;

inline std::shared_ptr<RingMemory> ring_of(std::uint32_t slots, bool on_device) {
  const Geometry shape{kMessageBytes, slots, 7, kNearWrap};
  if (!on_device) return Segment::create(shape);
  const lamina_cuda_ring_shape wanted{shape.message_bytes, shape.first_seqno, shape.slots, shape.epoch};
  lamina_cuda_ring made{};
  expect_ok(lamina_cuda_ring_create(&wanted, 1, &made));
  return std::make_shared<rdma::DeviceRing>(shape, made);
}

// A ring or its mirror, and the softnic that knows it.
struct NicSide {
  NicSide(std::uint32_t slots, const rdma::SoftHabits& habits, bool is_devices = true)
      : memory(ring_of(slots, is_devices && rings_on_device)),
        segment(rdma::mapped_for_softnic(memory)),
        nic(habits),
        local(nic.register_memory(static_cast<std::byte*>(segment->memory()), segment->bytes(), segment,
                                  memory->memory())) {}
  rdma::RemoteMemory remote() const {
    return {reinterpret_cast<std::uintptr_t>(memory->memory()), memory->bytes(), local.key};
  }
  rdma::PeerMemory as_peer() const { return {static_cast<std::byte*>(segment->memory()), remote(), segment}; }

  std::shared_ptr<RingMemory> memory;
  std::shared_ptr<Segment> segment;  // the same, where the softnic and this test look at it
  rdma::SoftNic nic;
  rdma::LocalMemory local;
};

// A device's end of a channel, with what posts for it.
class DeviceSide {
public:
  DeviceSide(const NicSide& self, const rdma::QueuePair& pair, const rdma::RemoteMemory& remote,
             lamina_cuda_channel_side side, std::int64_t timeout_ns = kForever)
      : writer(std::make_shared<rdma::Mlx5Writer>(pair, self.local, remote, "worker 3")),
        lent(writer, self.memory, test_peer(), side == LAMINA_CUDA_CHANNEL_SENDS) {
    const lamina_cuda_channel channel{self.memory->memory(),
                                      self.memory->bytes(),
                                      side,
                                      self.memory->is_on_device() ? 1 : 0,
                                      timeout_ns,
                                      "worker 3"};
    expect_ok(lamina_cuda_channel_create(&channel, &end));
    const lamina_cuda_nic wanted = lent.for_device(timeout_ns);
    expect_ok(lamina_cuda_nic_create(&wanted, &nic));
    expect_ok(lamina_cuda_channel_attach(end, nic));
  }
  ~DeviceSide() {
    if (end != nullptr) close();
  }
  DeviceSide(const DeviceSide&) = delete;
  DeviceSide& operator=(const DeviceSide&) = delete;

  void expect_sound() const {
    expect_ok(lamina_cuda_channel_check(end));
    expect_ok(lamina_cuda_nic_check(nic));
  }

  void send(const std::vector<Memory>& parts) const {
    const Buffers from = buffers_of(parts);
    expect_ok(lamina_cuda_channel_send(end, from.part, static_cast<int>(from.count), nullptr));
  }
  // Into buffers of the sizes that these have.
  std::vector<Bytes> receive(const std::vector<Memory>& like) const {
    std::vector<Memory> room;
    for (const Memory& part : like) room.emplace_back(part.size());
    const Buffers into = buffers_of(room);
    expect_ok(lamina_cuda_channel_recv(end, into.part, static_cast<int>(into.count), nullptr));
    return copies_of(room);
  }

  // As an owner ends it.
  lamina_cuda_nic_left close() {
    lamina_cuda_nic_left left{};
    expect_ok(lamina_cuda_channel_abort(end));
    expect_ok(lamina_cuda_nic_destroy(nic, &left));
    expect_ok(lamina_cuda_channel_destroy(std::exchange(end, nullptr)));
    return left;
  }

  std::shared_ptr<rdma::Mlx5Writer> writer;
  rdma::LentQueue lent;
  lamina_cuda_channel_end* end = nullptr;
  lamina_cuda_nic_end* nic = nullptr;
};

inline std::vector<Memory> some_parts(Random& random) {
  std::vector<Memory> parts;
  for (std::size_t count = random() % (kMostParts + 1); parts.size() < count;) {
    parts.emplace_back(random() % 1200);
    parts.back().fill(random);
  }
  return parts;
}

}  // namespace cuda_nic_test
