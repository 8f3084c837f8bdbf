// The library's own calls for a NIC (fhbn/cuda/nic.h), over a runtime whose device is the emulation: its
// kernels post to a real softnic and hear of it, for a device's end of a channel and for the host's end at
// the other side. How a GPU's memory orders things it does not show. Exits with 1 on a mismatch.

#include "cuda_nic.hpp"

namespace {

using namespace cuda_nic_test;

// Both ends are devices: what one sends, the other receives, with two softnics and no host between them.
void check_messages(const rdma::SoftHabits& habits, std::uint32_t blocks) {
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
    sender.expect_sound();
    receiver.expect_sound();
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
      [](const std::function<void(NicSide&, const rdma::QueuePair&, rdma::RemoteMemory&)>& spoil,
         const std::string& words) {
        Random random(1);
        NicSide mirror(2, {}), ring(2, {});
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

}  // namespace

int main() {
  check_messages({}, 64);
  check_messages({.reorders = true}, 8);
  check_failures();
  check_silence();
  check_refusals();
}
