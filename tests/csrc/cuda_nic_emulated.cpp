// The library's own calls for a NIC (fhbn/cuda/nic.h), over a runtime whose device is the emulation: its
// kernels post to a real softnic and hear of it, for a device's end of a channel and for the host's end at
// the other side. How a GPU's memory orders things it does not show. Exits with 1 on a mismatch.

#include <cstdlib>

#include "cuda_nic.hpp"
#include "fhbn/errors.hpp"

namespace {

using namespace cuda_nic_test;

// Both ends are devices: what one sends, the other receives, with two softnics and no host between them.
// Returns how many of the receiver's requests its NIC has taken from a register.
std::uint64_t check_messages(const rdma::SoftHabits& habits, std::uint32_t blocks) {
  Random random(blocks);
  NicSide mirror(2, habits), ring(2, habits);
  const rdma::QueuePair there = mirror.nic.connect(blocks, ring.as_peer());
  const rdma::QueuePair back = ring.nic.connect(blocks, mirror.as_peer());
  DeviceSide sender(mirror, there, ring.remote(), LAMINA_CUDA_CHANNEL_SENDS);
  DeviceSide receiver(ring, back, mirror.remote(), LAMINA_CUDA_CHANNEL_RECEIVES);
  for (int round = 0; round < 60; ++round) {
    const std::vector<Memory> parts = some_parts(random);
    sender.send(parts);
    expect(receiver.receive(parts) == copies_of(parts),
           "a device receives something else than the other has sent");
    // There is nothing to tell that was not told.
    expect_ok(lamina_cuda_nic_post(sender.nic, nullptr));
    expect_ok(lamina_cuda_nic_post(receiver.nic, nullptr));
    sender.expect_sound();
    receiver.expect_sound();
  }
  expect_ok(lamina_cuda_nic_poll(sender.nic, nullptr));
  expect_ok(lamina_cuda_nic_poll(receiver.nic, nullptr));
  sender.expect_sound();
  receiver.expect_sound();
  const auto& ours = mirror.segment->ring();
  expect(load_acquire(ours.consumed.seqno) == kNearWrap + 60, "the sender's credits have not come");
  return ring.nic.queue(back.send.qpn)->counts().blueflames;
}

// Each credit is a request by itself.
void check_blueflame() {
  ::setenv("LAMINA_CUDA_BLUEFLAME", "1", 1);
  expect(check_messages({}, 64) > 10, "a NIC finds no request in its registers");
  expect(check_messages({.reorders = true}, 8) > 10, "a NIC that reorders finds no request there");
  expect(check_messages({.drops_blueflame = true}, 16) == 0,
         "a NIC that looks at no register finds requests");
  ::unsetenv("LAMINA_CUDA_BLUEFLAME");
  expect(check_messages({}, 16) == 0, "registers are given requests though nobody has asked for it");
}

// What was sent before and is not done yet is no reason to look, while it is less than half of the queue; nor
// are credits, while a slot is known to be free.
void check_looks() {
  constexpr std::uint32_t kBlocks = 16, kPerMessage = 2;
  const auto looks_of = [](const auto& call) {
    const std::uint64_t before = emulated::looks;
    call();
    return emulated::looks - before;
  };
  NicSide mirror(8, {}), ring(8, {});
  const rdma::QueuePair there = mirror.nic.connect(kBlocks, ring.as_peer());
  const rdma::QueuePair back = ring.nic.connect(kBlocks, mirror.as_peer());
  DeviceSide sender(mirror, there, ring.remote(), LAMINA_CUDA_CHANNEL_SENDS);
  DeviceSide receiver(ring, back, mirror.remote(), LAMINA_CUDA_CHANNEL_RECEIVES);
  for (std::uint32_t blocks = 0; blocks < kBlocks / 2; blocks += kPerMessage) {
    expect(looks_of([&] { sender.send({}); }) == 0, "a message is sent with a look over the bus");
  }
  expect(looks_of([&] { sender.send({}); }) > 0, "completions are never looked at");
  // The number of messages is there by now, and is all that is looked at.
  expect_ok(lamina_cuda_nic_poll(sender.nic, nullptr));
  for (std::uint32_t sent = 0; sent < kBlocks / 2 / kPerMessage + 1; ++sent) {
    expect(looks_of([&] { receiver.receive({}); }) == 1, "a message is received with more looks than one");
  }
  sender.expect_sound();
  receiver.expect_sound();
}

// A sender that waits for a slot hears of its NIC's failure meanwhile.
void check_failure_in_a_wait() {
  NicSide mirror(2, {}), ring(2, {});
  const rdma::QueuePair pair = mirror.nic.connect(64, ring.as_peer());
  DeviceSide sender(mirror, pair, ring.remote(), LAMINA_CUDA_CHANNEL_SENDS);
  mirror.nic.queue(pair.send.qpn)->fail();
  for (int i = 0; i < 3; ++i) sender.send({});
  expect_status(LAMINA_CUDA_NIC_FAILED, lamina_cuda_channel_check(sender.end),
                "the NIC carries no more messages to worker 3 (at message 18446744073709551615;");
  expect_status(LAMINA_CUDA_NIC_FAILED, lamina_cuda_nic_check(sender.nic), "sends nothing more");
}

void check_failures() {
  const auto failing =
      [](const std::function<void(NicSide&, const rdma::QueuePair&, rdma::RemoteMemory&)>& spoil,
         const std::string& words) {
        Random random(1);
        NicSide mirror(2, {}), ring(2, {});
        const rdma::QueuePair pair = mirror.nic.connect(16, ring.as_peer());
        rdma::RemoteMemory remote = ring.remote();
        spoil(mirror, pair, remote);
        std::uint32_t fate = 0;
        DeviceSide sender(mirror, pair, remote, LAMINA_CUDA_CHANNEL_SENDS);
        expect_ok(lamina_cuda_channel_share(sender.end, &fate));
        sender.send({});
        for (int again = 0; again < 2; ++again) {
          expect_ok(lamina_cuda_nic_poll(sender.nic, nullptr));
          expect_status(LAMINA_CUDA_NIC_FAILED, lamina_cuda_nic_check(sender.nic), words);
        }
        expect(fate == 1, "ends that share a NIC's fate do not hear of its failure");
        expect(load_acquire(ring.segment->ring().published.seqno) == kNearWrap,
               "a message was told of that has not come");
      };
  failing([](NicSide&, const rdma::QueuePair&, rdma::RemoteMemory& remote) { remote.key ^= 1; },
          "the NIC of worker 3 refuses a write");
  failing(
      [](NicSide& self, const rdma::QueuePair&, rdma::RemoteMemory&) { self.nic.deregister(self.local.key); },
      "the NIC may not read");
  failing([](NicSide& self, const rdma::QueuePair& pair,
             rdma::RemoteMemory&) { self.nic.queue(pair.send.qpn)->unplug(); },
          "the NIC of worker 3 has not answered");
  failing([](NicSide& self, const rdma::QueuePair& pair,
             rdma::RemoteMemory&) { self.nic.queue(pair.send.qpn)->fail(); },
          "has failed and sends nothing more");
}

// Queues that no NIC looks at: waits end by the clock, or by abort().
void check_silence() {
  for (const bool aborts : {false, true}) {
    NicSide mirror(2, {}), ring(2, {});
    const rdma::QueueMemory queues(8);
    DeviceSide sender(mirror, {queues.send(5), queues.completions(), nullptr}, ring.remote(),
                      LAMINA_CUDA_CHANNEL_SENDS, aborts ? kForever : 1'000'000);
    if (aborts) expect_ok(lamina_cuda_nic_abort(sender.nic));
    expect_ok(lamina_cuda_nic_poll(sender.nic, nullptr));
    expect_status(aborts ? LAMINA_CUDA_CHANNEL_LOST : LAMINA_CUDA_CHANNEL_LATE,
                  lamina_cuda_nic_check(sender.nic),
                  aborts ? "worker 3 has ended" : "its queue stands still");
  }
}

void check_refusals() {
  NicSide mirror(2, {});
  const rdma::QueueMemory queues(8);
  const rdma::QueuePair pair{queues.send(5), queues.completions(), nullptr};
  const auto writer =
      std::make_shared<rdma::Mlx5Writer>(pair, mirror.local, rdma::RemoteMemory{0, 1 << 20, 2}, "");
  const rdma::LentQueue lent(writer, mirror.segment, test_peer(), true);
  const lamina_cuda_nic good = lent.for_device(1'000'000);
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
  {
    const DeviceSide sender(mirror, pair, {0, 1 << 20, 2}, LAMINA_CUDA_CHANNEL_SENDS);
    const DeviceSide receiver(mirror, pair, {0, 1 << 20, 2}, LAMINA_CUDA_CHANNEL_RECEIVES);
    expect_status(LAMINA_CUDA_BAD_ARGUMENT, lamina_cuda_channel_attach(receiver.end, sender.nic),
                  "it cannot send");
    expect_status(LAMINA_CUDA_BAD_ARGUMENT, lamina_cuda_channel_attach(sender.end, nullptr), "is missing");
  }
  lamina_cuda_nic_left left{};
  expect_status(LAMINA_CUDA_BAD_ARGUMENT, lamina_cuda_nic_destroy(nullptr, &left), "is missing");
  for (const char* call : {"cudaHostRegister", "cudaHostGetDevicePointer", "cudaHostAlloc", "cudaMalloc",
                           "cudaMemcpy", "cudaFuncGetAttributes"}) {
    fake_cuda::failing = call;
    expect_status(LAMINA_CUDA_FAILED, lamina_cuda_nic_create(&good, &end), "it was asked to");
    fake_cuda::failing.clear();
    expect(fake_cuda::registered.empty(), std::string(call) + " failed and memory stayed pinned");
  }
}

// A device's ring is made where a NIC's writes are seen in order only, and nothing is left of one that is
// not.
void check_rings() {
  const lamina_cuda_ring_shape good{kMessageBytes, kNearWrap, 2, 7};
  lamina_cuda_ring ring{};
  lamina_cuda_ring_shape bad = good;
  bad.slots = 3;
  expect_status(LAMINA_CUDA_BAD_ARGUMENT, lamina_cuda_ring_create(&bad, 0, &ring), "an impossible shape");
  expect_status(LAMINA_CUDA_BAD_ARGUMENT, lamina_cuda_ring_create(&good, 0, nullptr), "nowhere to put");
  fake_cuda::rdma_writes_ordering = cudaGPUDirectRDMAWritesOrderingNone;
  expect_status(LAMINA_CUDA_FAILED, lamina_cuda_ring_create(&good, 1, &ring), "in order");
  fake_cuda::rdma_writes_ordering = cudaGPUDirectRDMAWritesOrderingOwner;
  for (const char* call : {"cudaMalloc", "cudaMemcpy", "cudaStreamSynchronize",
                           "cudaGetDriverEntryPointByVersion", "cuMemGetHandleForAddressRange"}) {
    fake_cuda::failing = call;
    expect_status(LAMINA_CUDA_FAILED, lamina_cuda_ring_create(&good, 1, &ring), "");
    fake_cuda::failing.clear();
    expect(fake_cuda::of_devices.empty(), std::string(call) + " failed and memory stays");
  }
  expect_ok(lamina_cuda_ring_create(&good, 0, &ring));
  const auto shared = std::make_shared<rdma::DeviceRing>(Geometry{kMessageBytes, 2, 7, kNearWrap}, ring);
  expect(shared->descriptor() == -1 && shared->is_on_device(), "a ring has a file that nobody asked for");
  expect_message<ChannelError>([&] { rdma::mapped_for_softnic(shared); }, "by its dmabuf only");
  expect(cudaHostRegister(ring.memory, ring.bytes, 0) != cudaSuccess, "a device's memory is pinned");
  lamina_cuda_channel channel{ring.memory, ring.bytes, LAMINA_CUDA_CHANNEL_SENDS, 0, 1, "worker 3"};
  lamina_cuda_channel_end* end = nullptr;
  expect_status(LAMINA_CUDA_FAILED, lamina_cuda_channel_create(&channel, &end), "pinning the channel's");
  channel.on_device = 1;
  expect_ok(lamina_cuda_channel_create(&channel, &end));
  expect_ok(lamina_cuda_channel_destroy(end));
}

void check_all() {
  check_messages({}, 64);
  check_messages({.reorders = true}, 8);
  check_looks();
  check_failure_in_a_wait();
  check_failures();
}

}  // namespace

int main() {
  check_blueflame();
  check_silence();
  check_refusals();
  check_rings();
  check_all();
#ifndef __SANITIZE_THREAD__  // it does not see that two mappings are one memory, nor the order that lines
                             // there make
  rings_on_device = true;
  check_all();
#endif
  expect(fake_cuda::of_devices.empty(), "memory of a device stays with it");
}
