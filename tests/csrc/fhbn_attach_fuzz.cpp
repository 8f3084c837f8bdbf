// Descriptors that an evil peer could send for a ring: Segment::attach() refuses each in a sentence, and
// keeps nothing of it; what it takes has a shape that it may have. Meant for a sanitized build. Exits with 1
// on a mismatch.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <stdexcept>
#include <system_error>

#include "fhbn/errors.hpp"
#include "fhbn_children.hpp"
#include "fhbn_messages.hpp"

namespace {

using namespace fhbn_test;

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr Preamble kSound{kMagic, 1000, 7, 4, 3};

class Descriptor {
public:
  explicit Descriptor(int number) : number_(number) { expect(number >= 0, "a descriptor cannot be made"); }
  ~Descriptor() { ::close(number_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  operator int() const { return number_; }

private:
  int number_;
};

struct Memory {
  Descriptor descriptor{::memfd_create("fhbn_attach_fuzz", MFD_ALLOW_SEALING)};

  Memory(std::uint64_t bytes, const Preamble& preamble, int seals = kSeals) {
    const auto written = std::min<std::uint64_t>(bytes, sizeof preamble);
    expect(::pwrite(descriptor, &preamble, written, 0) == static_cast<ssize_t>(written),
           "memory is not written");
    expect(::ftruncate(descriptor, static_cast<off_t>(bytes)) == 0, "memory cannot be made");
    if (seals != 0) expect(::fcntl(descriptor, F_ADD_SEALS, seals) == 0, "memory cannot be sealed");
  }
};

std::uint64_t bytes_of(const Preamble& preamble) {
  return ring_bytes(preamble.message_bytes, preamble.slots);
}

void refused(int descriptor, const std::string& what) {
  expect_throws<std::invalid_argument>([&] { Segment::attach(descriptor); }, what);
}

void refused(std::uint64_t bytes, const Preamble& preamble, const std::string& what, int seals = kSeals) {
  refused(Memory(bytes, preamble, seals).descriptor, what);
}

void what_is_no_memory() {
  int pair[2];
  expect(::pipe(pair) == 0, "no pipe");
  refused(pair[0], "a pipe");
  ::close(pair[0]);
  ::close(pair[1]);
  expect(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "no socket");
  refused(pair[0], "a socket");
  ::close(pair[0]);
  ::close(pair[1]);
  std::FILE* file = std::tmpfile();
  expect(file != nullptr && ::ftruncate(::fileno(file), static_cast<off_t>(bytes_of(kSound))) == 0,
         "no file");
  expect(::pwrite(::fileno(file), &kSound, sizeof kSound, 0) == sizeof kSound, "a file is not written");
  refused(::fileno(file), "a file");
  std::fclose(file);
  refused(Descriptor(::open("/dev/zero", O_RDWR)), "a device");
  refused(Descriptor(::open("/", O_RDONLY)), "a directory");
  refused(Descriptor(::open("/", O_PATH)), "a path");
  for (const int closed : {-1, pair[0], 1'000'000}) {
    expect_throws<std::system_error>([&] { Segment::attach(closed); }, "a closed descriptor");
  }
}

void memory_that_can_change() {
  const auto bytes = bytes_of(kSound);
  refused(bytes, kSound, "unsealed memory", 0);
  for (const int missing : {F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_SEAL}) {
    refused(bytes, kSound, "memory without seal " + std::to_string(missing), kSeals & ~missing);
  }
  for (const int unwritable : {F_SEAL_WRITE, 0x10 /* F_SEAL_FUTURE_WRITE */}) {
    const Memory memory(bytes, kSound, kSeals | unwritable);
    expect_throws<std::system_error>([&] { Segment::attach(memory.descriptor); },
                                     "memory sealed for reading");
  }
  const Memory memory(bytes, kSound);
  const std::string path = "/proc/self/fd/" + std::to_string(memory.descriptor);
  const Descriptor readable(::open(path.c_str(), O_RDONLY));
  expect_throws<std::system_error>([&] { Segment::attach(readable); }, "memory opened for reading");
}

void memory_of_another_shape() {
  const auto bytes = bytes_of(kSound);
  for (const std::uint64_t wrong :
       {std::uint64_t{0}, std::uint64_t{1}, kSlotsOffset - 1, kSlotsOffset, bytes / 2, bytes - kSlotsOffset,
        bytes - 1, bytes + 1, bytes + kSlotsOffset}) {
    refused(wrong, kSound, "a ring of " + std::to_string(wrong) + " bytes");
  }
  for (int bit = 0; bit < 64; ++bit) {
    Preamble preamble = kSound;
    preamble.magic ^= std::uint64_t{1} << bit;
    refused(bytes, preamble, "another magic");
  }
  // Each with the size that it has by the formula too, also where that goes beyond 2^64 and begins again.
  const auto shape = [](std::uint64_t message_bytes, std::uint32_t slots) {
    const Preamble preamble{kMagic, message_bytes, 7, slots, 3};
    const std::string what = std::to_string(slots) + " slots of " + std::to_string(message_bytes) + " bytes";
    refused(bytes_of(kSound), preamble, what);
    const std::uint64_t bytes = bytes_of(preamble);
    if (bytes <= std::uint64_t{1} << 32) refused(bytes, preamble, what);
  };
  for (const std::uint32_t slots : {0u, 3u, 5u, 6u, 65'535u, 65'537u, 1u << 17, 1u << 31, ~0u}) {
    for (const std::uint64_t message_bytes : {1, 1000}) shape(message_bytes, slots);
  }
  for (std::uint32_t slots = 1; slots <= kMostSlots; slots *= 2) {
    shape(0, slots);
    shape(kMostMessageBytes + 1, slots);
    for (std::uint64_t below = 0; below <= 256; ++below) shape(0 - below - 1, slots);
    const std::uint64_t around = (~std::uint64_t{0} / slots) + 1;  // slots times that is 2^64
    if (around > kMostMessageBytes) shape(around - sizeof(SlotHeader), slots);
  }
}

std::uint64_t of_any_magnitude(Random& random) {
  const std::uint64_t all = random();
  return all >> random.below(64);
}

// What is taken can be used, whatever else lies in it.
void shapes_at_random(Random random) {
  int taken = 0;
  for (int round = 0; round < 5'000; ++round) {
    Preamble preamble{kMagic, 1 + random.below(10'000), random(), 1u << random.below(5), 3};
    if (random.one_in(4)) preamble.message_bytes = of_any_magnitude(random);
    if (random.one_in(4)) preamble.slots = static_cast<std::uint32_t>(of_any_magnitude(random));
    std::uint64_t bytes = bytes_of(preamble);
    if (bytes > (1 << 20) || random.one_in(4)) bytes = kSlotsOffset * (1 + random.below(64));
    const Memory memory(bytes, preamble);
    try {
      const auto segment = Segment::attach(memory.descriptor);
      const Geometry& geometry = segment->geometry();
      expect(is_sound(geometry.message_bytes, geometry.slots) && segment->bytes() == bytes &&
                 segment->bytes() == ring_bytes(geometry.message_bytes, geometry.slots),
             "a ring of an impossible shape was taken");
      Sender sender(segment, unwatched("the receiver"), 0us);
      expect_throws<Corrupted>(
          [&] {
            const std::byte all[10'001] = {};
            const std::span<const std::byte> part(
                all, std::min<std::uint64_t>(geometry.message_bytes, sizeof all));
            for (std::uint32_t i = 0; i <= geometry.slots; ++i) sender.send({&part, 1}, {0us, kNever});
          },
          "credits that nobody gave");
      ++taken;
    } catch (const std::invalid_argument&) {
    }
  }
  expect(taken > 1'000, "hardly any ring was taken");
}

}  // namespace

int main() {
  const Resources before = Resources::now();
  Segment::attach(Memory(bytes_of(kSound), kSound).descriptor);
  what_is_no_memory();
  memory_that_can_change();
  memory_of_another_shape();
  shapes_at_random(Random(20240603));
  before.expect_no_more_now();
  std::puts("fhbn_attach_fuzz: ok");
}
