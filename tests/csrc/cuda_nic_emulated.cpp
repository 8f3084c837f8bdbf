// The library's own calls for a NIC (fhbn/cuda/nic.h), over a runtime whose device is the emulation: its
// kernels post to a real softnic and hear of it, for a device's end of a channel and for the host's end at
// the other side. How a GPU's memory orders things it does not show. Exits with 1 on a mismatch.

#include <thread>

#include "cuda_channel.hpp"
#include "cuda_runtime_api.h"
#include "fhbn/cuda/channel.h"
#include "fhbn/cuda/nic.cuh"
#include "fhbn/cuda/nic.h"
#include "softnic_pair.hpp"

namespace {

using namespace lamina::fhbn;
using namespace lamina::fhbn::cuda;
using softnic_test::kLong;

constexpr std::uint64_t kNearWrap = 0 - std::uint64_t{3};
constexpr std::uint64_t kMessageBytes = 20'000;

template <typename Args>
bool launch_if(const void* entry, void (*kernel)(Args), dim3 grid, dim3 block, void** arguments) {
  if (entry != reinterpret_cast<const void*>(kernel)) return false;
  emulated::launch(kernel, static_cast<int>(grid.x), static_cast<int>(grid.y), static_cast<int>(block.x), 0,
                   *static_cast<const std::remove_const_t<Args>*>(arguments[0]));
  return true;
}

void expect_status(lamina_cuda_status wanted, lamina_cuda_status found, const std::string& words) {
  const std::string message = lamina_cuda_message();
  expect(wanted == found, words + ": the status is " + std::to_string(found) + ": " + message);
  expect(wanted == LAMINA_CUDA_OK ? message.empty() : message.find(words) != std::string::npos,
         "\"" + message + "\" does not say \"" + words + "\"");
}

void expect_ok(lamina_cuda_status found) { expect_status(LAMINA_CUDA_OK, found, "a sound call"); }

// A ring or its mirror, and the softnic that knows it.
struct Side {
  explicit Side(std::uint32_t slots, const rdma::SoftHabits& habits)
      : segment(Segment::create({kMessageBytes, slots, 7, kNearWrap})),
        nic(habits),
        local(nic.register_memory(static_cast<std::byte*>(segment->memory()), segment->bytes(), segment)) {}
  rdma::RemoteMemory remote() const {
    return {reinterpret_cast<std::uintptr_t>(segment->memory()), segment->bytes(), local.key};
  }
  rdma::PeerMemory as_peer() const { return {static_cast<std::byte*>(segment->memory()), remote(), segment}; }

  std::shared_ptr<Segment> segment;
  rdma::SoftNic nic;
  rdma::LocalMemory local;
};

lamina_cuda_nic_queues queues_of(const rdma::QueuePair& pair) {
  return {.requests = pair.send.requests,
          .send_record = pair.send.doorbell_record,
          .registers = pair.send.registers,
          .completions = pair.completions.entries,
          .completion_record = pair.completions.doorbell_record,
          .blocks = pair.send.blocks,
          .completion_count = pair.completions.count,
          .qpn = pair.send.qpn,
          .half_bytes = pair.send.half_bytes,
          .registers_are_io = 0};
}

// A device's end of a channel, with what posts for it.
class DeviceSide {
public:
  DeviceSide(const Side& self, const rdma::QueuePair& pair, const rdma::RemoteMemory& remote,
             lamina_cuda_channel_side side, std::int64_t timeout_ns = std::int64_t{1} << 50)
      : pair_(pair) {
    const lamina_cuda_channel channel{self.segment->memory(), self.segment->bytes(), side, timeout_ns,
                                      "worker 3"};
    expect_ok(lamina_cuda_channel_create(&channel, &end));
    const lamina_cuda_nic asked{.queues = queues_of(pair),
                                .memory = self.segment->memory(),
                                .bytes = self.segment->bytes(),
                                .local_key = self.local.key,
                                .remote_key = remote.key,
                                .remote_address = remote.address,
                                .side = side,
                                .timeout_ns = timeout_ns,
                                .peer = "worker 3"};
    expect_ok(lamina_cuda_nic_create(&asked, &nic));
  }
  ~DeviceSide() {
    expect_ok(lamina_cuda_nic_destroy(nic));
    expect_ok(lamina_cuda_channel_destroy(end));
  }
  DeviceSide(const DeviceSide&) = delete;
  DeviceSide& operator=(const DeviceSide&) = delete;

  void expect_sound() const {
    expect_ok(lamina_cuda_channel_check(end));
    expect_ok(lamina_cuda_nic_check(nic));
  }

  lamina_cuda_channel_end* end = nullptr;
  lamina_cuda_nic_end* nic = nullptr;

private:
  rdma::QueuePair pair_;
};

std::vector<Memory> some_parts(Random& random) {
  std::vector<Memory> parts;
  for (std::size_t count = random() % (kMostParts + 1); parts.size() < count;) {
    parts.emplace_back(random() % 1200);
    parts.back().fill(random);
  }
  return parts;
}

// Both ends are devices: what one sends, the other receives, with two softnics and no host between them.
void check_messages(const rdma::SoftHabits& habits, std::uint32_t blocks) {
  Random random(blocks);
  Side mirror(2, habits), ring(2, habits);
  const rdma::QueuePair there = mirror.nic.connect(blocks, ring.as_peer());
  const rdma::QueuePair back = ring.nic.connect(blocks, mirror.as_peer());
  DeviceSide sender(mirror, there, ring.remote(), LAMINA_CUDA_CHANNEL_SENDS);
  DeviceSide receiver(ring, back, mirror.remote(), LAMINA_CUDA_CHANNEL_RECEIVES);
  for (int round = 0; round < 60; ++round) {
    const std::vector<Memory> parts = some_parts(random);
    std::vector<Memory> room;
    for (const Memory& part : parts) room.emplace_back(part.size());
    const Buffers from = buffers_of(parts), into = buffers_of(room);
    expect_ok(lamina_cuda_channel_send(sender.end, from.part, static_cast<int>(from.count), nullptr));
    expect_ok(lamina_cuda_nic_post(sender.nic, nullptr));
    expect_ok(lamina_cuda_channel_recv(receiver.end, into.part, static_cast<int>(into.count), nullptr));
    expect_ok(lamina_cuda_nic_post(receiver.nic, nullptr));
    sender.expect_sound();
    receiver.expect_sound();
    expect(copies_of(room) == copies_of(parts), "a device receives something else than the other has sent");
  }
  expect_ok(lamina_cuda_nic_poll(sender.nic, nullptr));
  expect_ok(lamina_cuda_nic_poll(receiver.nic, nullptr));
  sender.expect_sound();
  receiver.expect_sound();
  const auto& ours = mirror.segment->ring();
  expect(load_acquire(ours.consumed.seqno) == kNearWrap + 60, "the sender's credits have not come");
}

void check_failures() {
  const auto failing =
      [](const std::function<void(Side&, const rdma::QueuePair&, rdma::RemoteMemory&)>& spoil,
         const std::string& words) {
        Random random(1);
        Side mirror(2, {}), ring(2, {});
        const rdma::QueuePair pair = mirror.nic.connect(16, ring.as_peer());
        rdma::RemoteMemory remote = ring.remote();
        spoil(mirror, pair, remote);
        DeviceSide sender(mirror, pair, remote, LAMINA_CUDA_CHANNEL_SENDS);
        expect_ok(lamina_cuda_channel_send(sender.end, nullptr, 0, nullptr));
        expect_ok(lamina_cuda_nic_post(sender.nic, nullptr));
        for (int again = 0; again < 2; ++again) {
          expect_ok(lamina_cuda_nic_poll(sender.nic, nullptr));
          expect_status(LAMINA_CUDA_NIC_FAILED, lamina_cuda_nic_check(sender.nic), words);
        }
        expect(ring.segment->ring().published.seqno == kNearWrap, "a message was told of that has not come");
      };
  failing([](Side&, const rdma::QueuePair&, rdma::RemoteMemory& remote) { remote.key ^= 1; },
          "the NIC of worker 3 refuses a write");
  failing(
      [](Side& self, const rdma::QueuePair&, rdma::RemoteMemory&) { self.nic.deregister(self.local.key); },
      "the NIC may not read");
  failing(
      [](Side& self, const rdma::QueuePair& pair, rdma::RemoteMemory&) { self.nic.unplug(pair.send.qpn); },
      "the NIC of worker 3 has not answered");
  failing([](Side& self, const rdma::QueuePair& pair, rdma::RemoteMemory&) { self.nic.fail(pair.send.qpn); },
          "has failed and sends nothing more");
}

// Queues that no NIC looks at: waits end by the clock, or by abort().
void check_silence() {
  for (const bool aborts : {false, true}) {
    Side mirror(2, {}), ring(2, {});
    const rdma::QueueMemory queues(8);
    DeviceSide sender(mirror, {queues.send(5), queues.completions(), nullptr}, ring.remote(),
                      LAMINA_CUDA_CHANNEL_SENDS, aborts ? std::int64_t{1} << 50 : 1'000'000);
    if (aborts) expect_ok(lamina_cuda_nic_abort(sender.nic));
    expect_ok(lamina_cuda_nic_poll(sender.nic, nullptr));
    expect_status(aborts ? LAMINA_CUDA_CHANNEL_LOST : LAMINA_CUDA_CHANNEL_LATE,
                  lamina_cuda_nic_check(sender.nic),
                  aborts ? "worker 3 has ended" : "its queue stands still");
  }
}

void check_refusals() {
  Side mirror(2, {});
  const rdma::QueueMemory queues(8);
  const lamina_cuda_nic good{.queues = queues_of({queues.send(5), queues.completions(), nullptr}),
                             .memory = mirror.segment->memory(),
                             .bytes = mirror.segment->bytes(),
                             .local_key = 1,
                             .remote_key = 2,
                             .remote_address = 0,
                             .side = LAMINA_CUDA_CHANNEL_SENDS,
                             .timeout_ns = 1'000'000,
                             .peer = "worker 3"};
  lamina_cuda_nic_end* end = nullptr;
  lamina_cuda_nic bad = good;
  bad.queues.registers = nullptr;
  expect_status(LAMINA_CUDA_BAD_ARGUMENT, lamina_cuda_nic_create(&bad, &end), "a part of the NIC's queues");
  bad = good;
  bad.queues.blocks = 12;
  expect_status(LAMINA_CUDA_BAD_ARGUMENT, lamina_cuda_nic_create(&bad, &end), "a power of two");
  bad = good;
  bad.bytes -= 4096;
  expect_status(LAMINA_CUDA_BAD_ARGUMENT, lamina_cuda_nic_create(&bad, &end), "not as large as it says");
  expect_status(LAMINA_CUDA_BAD_ARGUMENT, lamina_cuda_nic_create(&good, nullptr), "nowhere to put");
  expect_status(LAMINA_CUDA_BAD_ARGUMENT, lamina_cuda_nic_post(nullptr, nullptr), "is missing");
  for (const char* call : {"cudaHostRegister", "cudaHostGetDevicePointer", "cudaHostAlloc", "cudaMalloc",
                           "cudaMemcpy", "cudaFuncGetAttributes"}) {
    fake_cuda::failing = call;
    expect_status(LAMINA_CUDA_FAILED, lamina_cuda_nic_create(&good, &end), "it was asked to");
    fake_cuda::failing.clear();
    expect(fake_cuda::registered.empty(), std::string(call) + " failed and memory stayed pinned");
  }
}

}  // namespace

void fake_cuda::launch(const void* entry, dim3 grid, dim3 block, void** arguments) {
  const bool launched = launch_if(entry, &await_slot, grid, block, arguments) ||
                        launch_if(entry, &gather, grid, block, arguments) ||
                        launch_if(entry, &cuda::poll, grid, block, arguments) ||
                        launch_if(entry, &fetch, grid, block, arguments) ||
                        launch_if(entry, &give_back, grid, block, arguments) ||
                        launch_if(entry, &post, grid, block, arguments) ||
                        launch_if(entry, &poll_nic, grid, block, arguments);
  expect(launched, "an unknown kernel was launched");
}

int main() {
  check_messages({}, 64);
  check_messages({.reorders = true}, 8);
  check_failures();
  check_silence();
  check_refusals();
}
