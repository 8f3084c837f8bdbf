// How a device's end of a channel over a NIC ends: the device gives the queue back, the host goes on in it
// and tells the peer, a real end on the host, which has had every message before that. The device is the
// emulation, the NIC a softnic. Exits with 1 on a mismatch.

#include <thread>

#include "cuda_nic.hpp"
#include "fhbn/errors.hpp"
#include "fhbn/rdma/receiver.hpp"
#include "fhbn/rdma/sender.hpp"

namespace {

using namespace cuda_nic_test;

constexpr std::uint32_t kBlocks = 16;  // so few that it wraps around often

// A device's end, whose queue it has from the host, and the host's end at the other side.
class Ends {
public:
  Ends(lamina_cuda_channel_side side, const rdma::SoftHabits& habits, std::uint32_t slots = 4)
      : sends_(side == LAMINA_CUDA_CHANNEL_SENDS),
        mirror_(slots, habits, sends_),
        ring_(slots, habits, !sends_),
        pair(here().nic.connect(kBlocks, there().as_peer())),
        device(here(), pair, there().remote(), side),
        host(std::make_shared<rdma::Mlx5Writer>(there().nic.connect(kBlocks, here().as_peer()), there().local,
                                                here().remote(), "the device")) {}

  NicSide& here() { return sends_ ? mirror_ : ring_; }
  NicSide& there() { return sends_ ? ring_ : mirror_; }

private:
  bool sends_;
  NicSide mirror_;
  NicSide ring_;

public:
  rdma::QueuePair pair;
  DeviceSide device;
  std::shared_ptr<rdma::Mlx5Writer> host;
};

// What was sent before is received after, and then the end is told.
void check_sender(const rdma::SoftHabits& habits, int messages) {
  Random random(static_cast<std::uint64_t>(messages));
  Ends ends(LAMINA_CUDA_CHANNEL_SENDS, habits);
  rdma::Receiver receiver(ends.there().segment, ends.host, test_peer(), {});
  std::vector<std::vector<Bytes>> last;
  for (int i = 0; i < messages; ++i) {
    const std::vector<Memory> parts = some_parts(random);
    ends.device.send(parts);
    if (i + 3 < messages) {
      expect(receive_on_host(receiver) == copies_of(parts), "the host receives another message");
    } else {
      last.push_back(copies_of(parts));
    }
  }
  ends.device.expect_sound();
  const lamina_cuda_nic_left left = ends.device.close();
  const std::uint64_t sent = kNearWrap + static_cast<std::uint64_t>(messages);
  expect(left.works == 1 && left.notified == sent, "the device leaves something else than it has done");
  ends.device.lent.close(left);
  const auto& state = ends.device.writer->state();
  expect(state.done == state.next, "the host leaves requests of its own undone");
  for (const auto& parts : last)
    expect(receive_on_host(receiver) == parts, "a message before the end is lost");
  expect_message<ChannelClosed>([&] { receiver.receive(patience()); }, "has closed the channel and all its");
}

void check_receiver(const rdma::SoftHabits& habits, int messages) {
  Random random(static_cast<std::uint64_t>(messages));
  Ends ends(LAMINA_CUDA_CHANNEL_RECEIVES, habits);
  rdma::Sender sender(ends.there().segment, ends.host, test_peer(), {});
  for (int i = 0; i < messages; ++i) {
    const std::vector<Memory> parts = some_parts(random);
    std::vector<std::span<const std::byte>> spans;
    for (const Memory& part : parts) spans.push_back(std::as_bytes(std::span(part.data(), part.size())));
    expect(sender.send(spans, patience()), "the host does not send");
    expect(ends.device.receive(parts) == copies_of(parts), "the device receives another message");
  }
  ends.device.expect_sound();
  const lamina_cuda_nic_left left = ends.device.close();
  ends.device.lent.close(left);
  expect(sender.consumed() == kNearWrap + static_cast<std::uint64_t>(messages), "credits are lost");
  expect_message<ChannelClosed>(
      [&] {
        for (int i = 0; i <= 4; ++i) sender.send({}, patience());
      },
      "has closed the channel and takes no more");
}

// The device waits for a slot that nobody gives back: the end comes all the same, and is told.
void check_waiting() {
  Ends ends(LAMINA_CUDA_CHANNEL_SENDS, {}, 2);
  rdma::Receiver receiver(ends.there().segment, ends.host, test_peer(), {});
  for (int i = 0; i < 2; ++i) ends.device.send({});
  expect_ok(lamina_cuda_channel_abort(ends.device.end));
  ends.device.send({});
  expect_status(LAMINA_CUDA_CHANNEL_LOST, lamina_cuda_channel_check(ends.device.end), "takes no more");
  const lamina_cuda_nic_left left = ends.device.close();
  expect(left.works == 1 && left.notified == kNearWrap + 2, "what was not sent is told of");
  ends.device.lent.close(left);
  for (int i = 0; i < 2; ++i) expect(receive_on_host(receiver).empty(), "a message is lost");
  expect_message<ChannelClosed>([&] { receiver.receive(patience()); }, "has closed the channel and all its");
}

// A wait for the NIC that the host has ended in the middle of a message: the queue is whole, the message is
// not told of, and the host goes on behind it.
void check_interrupted() {
  NicSide mirror(64, {}), ring(64, {});
  const rdma::QueueMemory queues(8);
  const rdma::QueuePair pair{queues.send(5), queues.completions(), nullptr};  // which no NIC looks at
  DeviceSide device(mirror, pair, ring.remote(), LAMINA_CUDA_CHANNEL_SENDS);
  expect_ok(lamina_cuda_nic_abort(device.nic));
  for (int i = 0; i < 6; ++i) device.send({});
  expect_status(LAMINA_CUDA_CHANNEL_LOST, lamina_cuda_nic_check(device.nic), "was not waited for");
  const lamina_cuda_nic_left left = device.close();
  expect(left.works == 1 && left.notified == kNearWrap + 4 && left.state.next == 8 && left.state.rung == 8,
         "a wait that was ended leaves something else");
}

// A NIC that has failed, or stands still, is asked for nothing more.
void check_failed() {
  {
    Ends ends(LAMINA_CUDA_CHANNEL_SENDS, {});
    ends.here().nic.queue(ends.pair.send.qpn)->fail();
    ends.device.send({});
    expect_ok(lamina_cuda_nic_poll(ends.device.nic, nullptr));
    expect_status(LAMINA_CUDA_NIC_FAILED, lamina_cuda_nic_check(ends.device.nic), "sends nothing more");
    expect(ends.device.close().works == 0, "a NIC that has failed is to be used");
  }
  NicSide mirror(2, {}), ring(2, {});
  const rdma::QueueMemory queues(8);
  DeviceSide late(mirror, {queues.send(5), queues.completions(), nullptr}, ring.remote(),
                  LAMINA_CUDA_CHANNEL_SENDS, 1'000'000);
  expect_ok(lamina_cuda_nic_poll(late.nic, nullptr));
  expect(late.close().works == 0, "a queue that stands still is to be used");
}

// A queue goes from the host to a device and back, and on from where it is.
void check_to_and_fro() {
  Ends ends(LAMINA_CUDA_CHANNEL_SENDS, {});
  rdma::Mlx5Writer& writer = *ends.device.writer;
  ends.device.send({});
  lamina_cuda_nic_left left{};
  expect_ok(lamina_cuda_nic_destroy(ends.device.nic, &left));
  for (int again = 0; again < 20; ++again) {
    writer.resume(std::bit_cast<rdma::SendState>(left.state));
    writer.drain(softnic_test::kLong);
    const lamina_cuda_nic wanted = ends.device.lent.for_device(kForever);
    expect_ok(lamina_cuda_nic_create(&wanted, &ends.device.nic));
    expect_ok(lamina_cuda_nic_poll(ends.device.nic, nullptr));
    ends.device.expect_sound();
    expect_ok(lamina_cuda_nic_destroy(ends.device.nic, &left));
    expect(left.works == 1 && left.state.next == writer.state().next + 1, "a device does not go on");
  }
  expect_ok(lamina_cuda_channel_destroy(std::exchange(ends.device.end, nullptr)));
}

// Who has closed before is told nothing: its queue pair may be gone.
void check_peer_first() {
  Ends ends(LAMINA_CUDA_CHANNEL_SENDS, {});
  rdma::Receiver receiver(ends.there().segment, ends.host, test_peer(), {});
  receiver.close();
  const lamina_cuda_nic_left left = ends.device.close();
  expect(left.closed == 1 && left.works == 1 && !ends.device.lent.peer_has_ended(),
         "a closed peer is not seen");
  ends.device.lent.close(left);
  expect(ends.device.writer->state().next == 0, "a closed peer is told of the end");
}

// A device that is broken gives everything back but the queue.
void check_broken() {
  for (const char* call : {"cudaDeviceSynchronize", "cudaMemcpy"}) {
    Ends ends(LAMINA_CUDA_CHANNEL_SENDS, {});
    expect_ok(lamina_cuda_nic_poll(ends.device.nic, nullptr));
    fake_cuda::failing = call;
    lamina_cuda_nic_left left{.state = {}, .notified = 1, .works = 1, .closed = 0};
    expect_status(LAMINA_CUDA_FAILED, lamina_cuda_nic_destroy(ends.device.nic, &left),
                  "last kernels that post");
    fake_cuda::failing.clear();
    expect(left.works == 0, "the queue of a broken device is to be used");
    expect(fake_cuda::registered.size() == 1, "a NIC's pages stay pinned");
    expect_ok(lamina_cuda_channel_destroy(std::exchange(ends.device.end, nullptr)));
    expect(fake_cuda::registered.empty(), "the ring stays pinned");
  }
}

// As queue pairs of a driver share pages: for records, and for registers.
void check_shared_pages() {
  NicSide mirror(2, {}), ring(2, {});
  const rdma::QueueMemory first(64), second(64);
  rdma::QueuePair one{first.send(1), first.completions(), nullptr};
  rdma::QueuePair other{second.send(2), second.completions(), nullptr};
  other.send.doorbell_record = one.send.doorbell_record + 64;
  other.completions.doorbell_record = one.completions.doorbell_record + 64;
  other.send.registers = one.send.registers + 64;
  DeviceSide sender(mirror, one, ring.remote(), LAMINA_CUDA_CHANNEL_SENDS);
  {
    DeviceSide receiver(ring, other, mirror.remote(), LAMINA_CUDA_CHANNEL_RECEIVES);
    // A ring, requests and completions of each; a page of records and one of registers.
    expect(fake_cuda::registered.size() == 8, "pages are not shared");
  }
  expect(fake_cuda::registered.size() == 5, "a page is not let go, or one that is needed is");
}

}  // namespace

int main() {
  for (const bool on_device : {false, true}) {
    rings_on_device = on_device;
    for (const rdma::SoftHabits& habits : {rdma::SoftHabits{}, rdma::SoftHabits{.drops_blueflame = true},
                                           rdma::SoftHabits{.reorders = true}}) {
      for (const int messages : {0, 1, 3, 8, 60}) {
        check_sender(habits, messages);
        check_receiver(habits, messages);
      }
    }
    check_to_and_fro();
    check_waiting();
    check_interrupted();
    check_failed();
    check_peer_first();
  }
  rings_on_device = false;
  check_broken();
  check_shared_pages();
  expect(fake_cuda::registered.empty(), "memory stays pinned");
  expect(fake_cuda::of_devices.empty(), "memory of a device stays with it");
  std::puts("cuda_nic_closing: the host ends what a device has begun");
}
