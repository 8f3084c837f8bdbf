// What the channel's CUDA kernels do when something goes wrong, on the host (cuda_emulation.hpp): they stop
// waiting, trust nothing that a peer has written, and do nothing any more after their first failure. Exits
// with 1 on a mismatch.

#include <algorithm>
#include <cstdio>
#include <functional>

#include "cuda_channel.hpp"

namespace {

using namespace lamina::fhbn;
using namespace lamina::fhbn::cuda;

constexpr std::uint64_t kFirst = 0 - std::uint64_t{1};
constexpr std::uint64_t kMessageBytes = 1000;

std::shared_ptr<Segment> ring_of(std::uint32_t slots) {
  return Segment::create({kMessageBytes, slots, 7, kFirst});
}

std::vector<Memory> memory_of(const std::vector<std::size_t>& sizes) {
  std::vector<Memory> all;
  for (const std::size_t size : sizes) all.emplace_back(size);
  return all;
}

// A failed end does nothing, and does it without looking at the host's memory even once.
void expect_poisoned(DeviceEnd& device, const Segment& segment, const std::string& when) {
  const auto* const memory = static_cast<const std::uint8_t*>(segment.memory());
  const Bytes ring(memory, memory + segment.bytes());
  const Mailbox::Report report = device.report();
  const std::vector<Memory> some = memory_of({16, 3});
  emulated::looks = 0;
  emulated::published = [&] { fail(when + ": a failed end still publishes"); };
  device.send(buffers_of(some));
  device.poll();
  device.fetch(buffers_of(some));
  device.give_back();
  device.recv(buffers_of(some));
  emulated::published = nullptr;
  expect(emulated::looks == 0, when + ": a failed end still looks");
  expect(std::equal(ring.begin(), ring.end(), memory), when + ": a failed end still writes into the ring");
  expect(copies_of(some) == copies_of(memory_of({16, 3})), when + ": a failed end still fetches");
  expect(std::memcmp(&report, &device.report(), sizeof report) == 0, when + ": the first reason is lost");
}

void expect_fault(DeviceEnd& device, const Segment& segment, Fault fault, std::uint64_t seqno,
                  const std::string& when) {
  const Mailbox::Report& report = device.report();
  expect(report.fault == fault, when + ": the device finds fault " +
                                    std::to_string(static_cast<std::uint32_t>(report.fault)) +
                                    " instead of " + std::to_string(static_cast<std::uint32_t>(fault)));
  expect(report.seqno == seqno, when + ": the fault is told of another message");
  expect(device.cursor().fault == fault, when + ": the end is not poisoned");
  expect_poisoned(device, segment, when);
}

void check_waits_end() {
  struct Case {
    const char* when;
    Fault fault;
    std::function<void(DeviceEnd&, Side&)> ending;  // after a while
  };
  const Case cases[] = {
      {"time passes", Fault::kLate, [](DeviceEnd&, Side&) {}},
      {"abort", Fault::kPeerLost, [](DeviceEnd& device, Side&) { device.abort(); }},
      {"the peer closes", Fault::kClosed,
       [](DeviceEnd&, Side& line) { store_release(line.state, State::kClosed); }},
  };
  for (const Case& c : cases) {
    for (const bool sends : {false, true}) {
      const auto segment = ring_of(1);
      DeviceEnd device(segment, kShortWait);
      const std::vector<Memory> some = memory_of({16});
      // One message before: all slots are full, or one was received.
      if (sends) {
        device.send(buffers_of(some));
      } else {
        DeviceEnd(segment).send(buffers_of(some));
        device.recv(buffers_of(some));
        expect(device.message().count == 1, "a message is not described");
      }
      int looks = 0;
      emulated::meanwhile = [&] {
        if (++looks == 50) c.ending(device, sends ? segment->ring().consumed : segment->ring().published);
        expect(looks < 1'000'000, std::string(c.when) + ": a wait does not end");
      };
      if (sends) {
        device.send(buffers_of(some));
      } else {
        device.poll();
      }
      emulated::meanwhile = nullptr;
      expect_fault(device, *segment, c.fault, kFirst + 1,
                   std::string(c.when) + (sends ? ", sending" : ", receiving"));
      expect(device.cursor().message.count == 0, "a message is described that is not there");
    }
  }
}

// What a peer published before it closed or ended is received, even if that is seen only with its end.
void check_last_messages() {
  for (const bool closes : {true, false}) {
    const auto segment = ring_of(2);
    DeviceEnd device(segment, kLongWait);
    Sender host(segment, test_peer(), Duration::zero());
    int looks = 0;
    emulated::meanwhile = [&] {
      // Between the looks at the number and the one at what else may have happened.
      if (++looks != 2 + kLooks) return;
      send_from_host(host, {Bytes(5, 1)});
      if (closes) {
        host.close();
      } else {
        device.abort();
      }
    };
    const std::vector<Memory> room = memory_of({5});
    device.recv(buffers_of(room));
    device.expect_sound("a last message");
    expect(room[0].bytes() == Bytes(5, 1), "a last message is lost");
    device.recv(buffers_of(room));
    emulated::meanwhile = nullptr;
    expect_fault(device, *segment, closes ? Fault::kClosed : Fault::kPeerLost, kFirst + 1, "after the last");
  }
}

// A message of three parts that a peer has then spoilt.
void check_corrupted_message(const char* how, Fault fault,
                             const std::function<void(Ring&, SlotHeader&)>& spoil) {
  const auto segment = ring_of(2);
  DeviceEnd device(segment);
  Sender host(segment, test_peer(), Duration::zero());
  send_from_host(host, {Bytes(100, 1), Bytes(200, 2), Bytes(300, 3)});
  spoil(segment->ring(), segment->slot(kFirst));
  device.recv(buffers_of(memory_of({100, 200, 300})));
  expect_fault(device, *segment, fault, kFirst, how);
}

void check_corrupted_messages() {
  constexpr std::uint64_t kHuge = 0 - std::uint64_t{1};
  using Slot = SlotHeader;
  check_corrupted_message("seqno", Fault::kOtherMessage, [](Ring&, Slot& slot) { ++slot.seqno; });
  check_corrupted_message("seqno of a lap before", Fault::kOtherMessage,
                          [](Ring&, Slot& slot) { slot.seqno -= 2; });
  check_corrupted_message("epoch", Fault::kOtherEpoch, [](Ring&, Slot& slot) { slot.epoch = 8; });
  check_corrupted_message("15 parts", Fault::kTooManyParts, [](Ring&, Slot& slot) { slot.parts = 15; });
  check_corrupted_message("2^32 parts", Fault::kTooManyParts, [](Ring&, Slot& slot) { slot.parts = 0 - 1u; });
  check_corrupted_message("a huge first part", Fault::kLargerThanMessages,
                          [](Ring&, Slot& slot) { slot.bytes[0] = kHuge; });
  check_corrupted_message("a huge last part", Fault::kLargerThanMessages,
                          [](Ring&, Slot& slot) { slot.bytes[2] = kHuge - 100; });
  check_corrupted_message("a part of a byte too many", Fault::kLargerThanMessages,
                          [](Ring&, Slot& slot) { slot.bytes[2] = kMessageBytes - 300 + 1; });
  check_corrupted_message("parts that wrap around", Fault::kLargerThanMessages,
                          [](Ring&, Slot& slot) { slot.bytes[0] = slot.bytes[1] = std::uint64_t{1} << 63; });
  check_corrupted_message("more published than there are slots", Fault::kTooMuchSent,
                          [](Ring& ring, Slot&) { ring.published.seqno = kFirst + 3; });
  check_corrupted_message("published backwards", Fault::kTooMuchSent,
                          [](Ring& ring, Slot&) { ring.published.seqno = kFirst - 1; });
  // And what is just possible is no corruption.
  const auto segment = ring_of(2);
  DeviceEnd device(segment);
  Sender host(segment, test_peer(), Duration::zero());
  send_from_host(host, {Bytes(kMessageBytes, 4)});
  const std::vector<Memory> room = memory_of({kMessageBytes});
  device.recv(buffers_of(room));
  device.expect_sound("a full message");
  expect(room[0].bytes() == Bytes(kMessageBytes, 4), "a full message arrives as something else");
}

void check_false_credits() {
  for (const std::uint64_t claimed : {kFirst + 3, kFirst - 1}) {
    const auto segment = ring_of(2);
    DeviceEnd device(segment);
    const std::vector<Memory> some = memory_of({10});
    device.send(buffers_of(some));
    device.send(buffers_of(some));
    device.expect_sound("sending");
    segment->ring().consumed.seqno = claimed;
    device.send(buffers_of(some));
    expect_fault(device, *segment, Fault::kFalseCredits, kFirst + 2, "false credits");
  }
}

void check_misuse(const char* how, Fault fault, std::uint64_t seqno,
                  const std::function<void(DeviceEnd&)>& call) {
  const auto segment = ring_of(2);
  DeviceEnd device(segment);
  Sender host(segment, test_peer(), Duration::zero());
  for (int i = 0; i < 2; ++i) send_from_host(host, {Bytes(100, 1), Bytes(20, 2)});
  call(device);
  expect_fault(device, *segment, fault, seqno, how);
}

void check_misuses() {
  const std::vector<Memory> small = memory_of({100, 19});
  check_misuse("a buffer that is too small", Fault::kLargerThanBuffer, kFirst,
               [&](DeviceEnd& device) { device.recv(buffers_of(small)); });
  expect(copies_of(small) == copies_of(memory_of({100, 19})), "some parts are fetched though not all can be");
  check_misuse("too few buffers", Fault::kOtherParts, kFirst,
               [](DeviceEnd& device) { device.recv(buffers_of(memory_of({100}))); });
  check_misuse("too many buffers", Fault::kOtherParts, kFirst,
               [](DeviceEnd& device) { device.recv(buffers_of(memory_of({100, 20, 0}))); });
  check_misuse("fetching nothing", Fault::kNoneOutstanding, kFirst,
               [](DeviceEnd& device) { device.fetch(buffers_of(memory_of({100, 20}))); });
  check_misuse("giving back nothing", Fault::kNoneOutstanding, kFirst,
               [](DeviceEnd& device) { device.give_back(); });
  check_misuse("giving back twice", Fault::kNoneOutstanding, kFirst + 1, [](DeviceEnd& device) {
    device.poll();
    device.give_back();
    device.give_back();
  });
  check_misuse("recv() with a message held", Fault::kOthersOutstanding, kFirst + 1, [](DeviceEnd& device) {
    device.poll();
    device.recv(buffers_of(memory_of({100, 20})));
  });
  check_misuse("polling with all slots held", Fault::kAllOutstanding, kFirst + 2, [](DeviceEnd& device) {
    for (int i = 0; i < 3; ++i) device.poll();
  });
}

void check_sentences() {
  Mailbox::Report report{};
  for (std::uint32_t code = 1; code <= static_cast<std::uint32_t>(Fault::kLargerThanBuffer); ++code) {
    report.fault = static_cast<Fault>(code);
    report.seqno = 41;
    const std::string sentence = notified(report, false, "worker 3");
    expect(sentence.find("worker 3") != std::string::npos, "a sentence does not name the peer: " + sentence);
    expect(sentence.find("message 41") != std::string::npos, "a sentence does not say where: " + sentence);
    expect(status_of(report.fault) >= LAMINA_CUDA_CHANNEL_LATE, "a fault has no status: " + sentence);
  }
  expect(status_of(Fault::kNone) == LAMINA_CUDA_OK, "no fault is a failure");
  report = {Fault::kLargerThanBuffer, 2, 41, 300, 200};
  expect(
      notified(report, false, "worker 3") ==
          "part 2 of the message from worker 3 has 300 bytes and its buffer has room for 200 (at message 41; "
          "this end does nothing since)",
      "a sentence is another: " + notified(report, false, "worker 3"));
}

}  // namespace

int main() {
  check_waits_end();
  check_last_messages();
  check_corrupted_messages();
  check_false_credits();
  check_misuses();
  check_sentences();
  std::puts("cuda_channel_faults: the kernels fail as they should");
}
