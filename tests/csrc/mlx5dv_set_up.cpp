// The set-up for a ConnectX, from the libraries it loads to messages that arrive, over libraries whose NIC is
// a softnic. What only hardware can show is whether a ConnectX does as that does.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "expect.hpp"
#include "fake_mlx5/fake_mlx5.hpp"
#include "fhbn/errors.hpp"
#include "fhbn/ordered.hpp"
#include "fhbn/rdma/connectx_writer.hpp"
#include "fhbn/rdma/device_ring.hpp"
#include "fhbn/rdma/receiver.hpp"
#include "fhbn/rdma/sender.hpp"
#include "fhbn/segment.hpp"

using namespace lamina::fhbn;
using namespace lamina::fhbn::rdma;

namespace {

constexpr std::uint64_t kMessageBytes = 4096;
constexpr std::uint32_t kSlots = 4;
constexpr Duration kPatience = std::chrono::seconds(10);

// One end: memory of a ring's shape, and a writer to the other's.
struct End {
  End()
      : memory(Segment::create({kMessageBytes, kSlots, 1, 0})),
        writer(VerbsDevice::open("mlx5_0:1"), memory, memory->bytes()) {}
  std::byte* bytes() const { return static_cast<std::byte*>(memory->memory()); }

  std::shared_ptr<Segment> memory;
  ConnectxWriter writer;
};

void connect(End& one, End& other) {
  const VerbsAddress first = one.writer.address(), second = other.writer.address();
  one.writer.connect(second, "the other", {3, 106});
  other.writer.connect(first, "the one", {3, 106});
}

// Whatever a test has changed is as before after it, and nothing that it has opened is left.
void with(const std::function<void(fake_mlx5::Settings&)>& change, const std::function<void()>& test) {
  change(fake_mlx5::settings());
  test();
  fake_mlx5::settings() = {};
  expect(fake_mlx5::living() == 0, std::to_string(fake_mlx5::living()) + " objects were not destroyed");
}

void send_one(End& from, const End& to, std::uint64_t seqno, std::size_t bytes) {
  const std::size_t offset = kSlotsOffset + (seqno % kSlots) * slot_stride(kMessageBytes);
  std::memset(from.bytes() + offset, static_cast<int>(seqno % 251 + 1), bytes);
  from.writer.write(offset, offset, bytes);
  from.writer.write_line(offsetof(Ring, published), {seqno + 1, State::kOpen, 1});
  from.writer.ring();
  const auto end = Clock::now() + kPatience;
  while (load_acquire(to.memory->ring().published.seqno) != seqno + 1) {
    expect(Clock::now() < end, "message " + std::to_string(seqno) + " has not arrived");
    std::this_thread::yield();
  }
  // Its number is there, so it is.
  expect(std::memcmp(to.bytes() + offset, from.bytes() + offset, bytes) == 0,
         "a message is not what was sent");
}

// Around the queues more than once, both ways, with payloads inside requests and outside.
void messages_arrive() {
  End one, other;
  connect(one, other);
  for (std::uint64_t seqno = 0; seqno < 3000; ++seqno) {
    const std::size_t bytes = seqno % 3 == 0 ? 64 : kMessageBytes;
    send_one(one, other, seqno, bytes);
    send_one(other, one, seqno, bytes);
  }
  one.writer.drain(kPatience);
  other.writer.drain(kPatience);
}

void lines_alone_go_by_blueflame() {
  End one, other;
  connect(one, other);
  one.writer.write_line(offsetof(Ring, consumed), {1, State::kOpen, 1});
  one.writer.ring();
  one.writer.drain(kPatience);
  expect(other.memory->ring().consumed.seqno == 1, "a line has not arrived");
}

void a_wrong_key_is_reported() {
  End one, other;
  VerbsAddress wrong = other.writer.address();
  wrong.rkey += 1;
  one.writer.connect(wrong, "the other");
  one.writer.write_line(offsetof(Ring, published), {1, State::kOpen, 1});
  const auto notified = expect_message<NicError>([&] { one.writer.drain(kPatience); }, "");
  expect(notified.fault == NicFault::kRemoteAccess, std::string("another fault: ") + notified.what());
}

void opening_fails(const std::string& words) {
  End one, other;
  expect_message<ChannelError>([&] { connect(one, other); }, words);
  expect_message<ChannelError>([&] { one.writer.check(); }, "is not connected yet");
}

// A GPU's ring, or its mirror, of which the peer may write to the part before the slots.
void memory_of_a_device_is_registered() {
  const Geometry shape{kMessageBytes, kSlots, 1, 0};
  std::vector<std::byte> memory(Segment::bytes_for(kMessageBytes, kSlots));
  const auto writer_of = [&](int file, std::size_t offered) {
    const lamina_cuda_ring made{memory.data(), memory.size(), memory.data(), [](void*) {}, file};
    return ConnectxWriter(VerbsDevice::open(""), std::make_shared<DeviceRing>(shape, made), offered);
  };
  const auto file = [] { return ::dup(STDOUT_FILENO); };
  const ConnectxWriter ring = writer_of(file(), memory.size());
  expect(fake_mlx5::registered_bytes() == memory.size(), "a device's ring is not registered");
  expect(ring.address().memory == reinterpret_cast<std::uintptr_t>(memory.data()), "its address is another");
  const ConnectxWriter mirror = writer_of(-1, kSlotsOffset);
  expect(fake_mlx5::registered_bytes() == 2 * memory.size() + kSlotsOffset,
         "a device's mirror is registered otherwise");
  fake_mlx5::settings().takes_device_memory = false;
  expect_message<ChannelError>([&] { writer_of(file(), memory.size()); },
                               "(Operation not supported): its driver takes no dmabuf");
  expect_message<ChannelError>([&] { writer_of(-1, memory.size()); }, "(Bad address): load nvidia-peermem");
}

// A ring is locked once; of its mirror, the part that the peer may write to is locked once more.
void memory_is_locked_as_little_as_can_be() {
  const auto memory = Segment::create({kMessageBytes, kSlots, 1, 0});
  const ConnectxWriter ring(VerbsDevice::open(""), memory, memory->bytes());
  expect(fake_mlx5::registered_bytes() == memory->bytes(), "a ring is registered more than once");
  const ConnectxWriter mirror(VerbsDevice::open(""), memory, kSlotsOffset);
  expect(fake_mlx5::registered_bytes() == 2 * memory->bytes() + kSlotsOffset,
         "a mirror is registered otherwise");
}

void a_fork_still_has_the_ring() {
  const End end;
  expect(fake_mlx5::hides_from_forks(), "a fork may leave the NIC with a copy of a queue");
  const pid_t child = ::fork();
  if (child == 0) ::_exit(load_acquire(end.memory->ring().preamble.magic) == kMagic ? 0 : 1);
  int status = -1;
  ::waitpid(child, &status, 0);
  expect(status == 0, "a fork cannot read the ring");
}

void ends_of_a_writer_without_a_peer_can_go() {
  End one, other;
  const auto absent = std::make_shared<Peer>("nobody");
  const auto writer_of = [](const End& end) {
    return std::make_shared<ConnectxWriter>(VerbsDevice::open(""), end.memory, end.memory->bytes());
  };
  const rdma::Sender sender(one.memory, writer_of(one), absent, Duration::zero());
  const rdma::Receiver receiver(other.memory, writer_of(other), absent, Duration::zero());
}

void impossible_addresses_are_reported() {
  End one, other;
  const auto expect_refused = [&](const std::function<void(VerbsAddress&)>& change,
                                  const std::string& words) {
    VerbsAddress wrong = other.writer.address();
    change(wrong);
    expect_message<ChannelError>([&] { one.writer.connect(wrong, "the other"); },
                                 "the other has sent an address that cannot be: " + words);
  };
  expect_refused([](VerbsAddress& a) { a.queue_pair = 1u << 24; }, "numbers of more than 24 bits");
  expect_refused([](VerbsAddress& a) { a.first_psn = 1u << 24; }, "numbers of more than 24 bits");
  expect_refused([](VerbsAddress& a) { a.mtu = 0; }, "an MTU");
  expect_refused([](VerbsAddress& a) { a.mtu = 6; }, "an MTU");
  expect_refused([](VerbsAddress& a) { a.memory = ~std::uint64_t{0} - 4096; }, "memory that goes beyond");
  expect_refused([](VerbsAddress& a) { a.port.lid = 0; }, "no LID");
  connect(one, other);  // and nothing has become of it
}

void infiniband_goes_by_lid() {
  End one, other;
  connect(one, other);
  const abi::AddressVector path = fake_mlx5::last_path();
  expect(path.is_global == 0 && path.destination_lid == 7, "a LID is not enough");
  expect(path.service_level == 3, "a service level is not gone by");
}

void a_port_that_requires_gids_gets_them() {
  End one, other;
  connect(one, other);
  const abi::AddressVector path = fake_mlx5::last_path();
  expect(path.is_global == 1 && path.global.destination.raw[15] == 7,
         "there is no GID in a path that needs one");
  expect(path.global.traffic_class == 106, "a traffic class is not gone by");
  VerbsAddress wrong = other.writer.address();
  wrong.port.gid = {};
  expect_message<ChannelError>([&] { one.writer.connect(wrong, "the other"); }, "no GID");
}

// What the environment asks of libmlx5.
void with_variable(const char* name, const std::function<void()>& test) {
  ::setenv(name, "1", 1);
  with([](fake_mlx5::Settings&) {}, test);
  ::unsetenv(name);
}

}  // namespace

int main() {
  using Settings = fake_mlx5::Settings;
  const auto as_it_is = [](Settings&) {};

  with(as_it_is, messages_arrive);
  const std::uint64_t after_messages = fake_mlx5::blueflames();
  with(as_it_is, lines_alone_go_by_blueflame);
  expect(fake_mlx5::blueflames() > after_messages, "no request went by BlueFlame");

  const std::uint64_t before = fake_mlx5::blueflames();
  with([](Settings& s) { s.drops_blueflame = true; }, messages_arrive);
  with([](Settings& s) { s.has_blueflame = false; }, messages_arrive);
  with_variable("MLX5_SHUT_UP_BF", messages_arrive);
  expect(fake_mlx5::blueflames() == before && fake_mlx5::fetched() > 0,
         "BlueFlame was used where there is none");

  with(as_it_is, a_wrong_key_is_reported);
  with([](Settings& s) { s.port_is_up = false; },
       [] {
         expect_message<ChannelError>([] { VerbsDevice::open(""); },
                                      "no RDMA device can be used; mlx5_0:1 is down");
       });
  with([](Settings& s) { s.is_mlx5 = false; },
       [] { opening_fails("mlx5_0:1 is no mlx5 NIC: take the engine 'verbs'"); });
  with([](Settings& s) { s.showing_fails_with = EOPNOTSUPP; },
       [] { opening_fails("does not show what its queues are made of: Operation not supported"); });
  with([](Settings& s) { s.entry_bytes = 128; }, [] { opening_fails("completions of 128 bytes"); });
  with([](Settings& s) { s.block_bytes = 128; }, [] { opening_fails("blocks of 128 bytes"); });
  with_variable("MLX5_QP_SIGNATURE", [] { opening_fails("signed requests (unset MLX5_QP_SIGNATURE)"); });
  with(as_it_is, memory_of_a_device_is_registered);
  with(as_it_is, memory_is_locked_as_little_as_can_be);
  with(as_it_is, a_fork_still_has_the_ring);
  with(as_it_is, ends_of_a_writer_without_a_peer_can_go);
  with(as_it_is, impossible_addresses_are_reported);
  with(as_it_is, infiniband_goes_by_lid);
  with([](Settings& s) { s.port_flags = abi::kRouteRequired; }, a_port_that_requires_gids_gets_them);
  std::puts("mlx5dv set-up: ok");
}
