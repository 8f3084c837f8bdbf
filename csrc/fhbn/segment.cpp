#include "fhbn/segment.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

namespace lamina::fhbn {

namespace {

// An open file descriptor that closes itself.
class Descriptor {
public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int number() const { return number_; }
  int release() { return std::exchange(number_, -1); }

private:
  int number_;
};

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

[[noreturn]] void fail(const std::string& doing) {
  throw std::system_error(errno, std::generic_category(), doing);
}

void require(bool holds, const char* sentence) {
  if (!holds) throw std::invalid_argument(sentence);
}

void* map(int descriptor, std::size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (memory == MAP_FAILED) fail("mapping " + std::to_string(bytes) + " bytes of shared memory");
  // Large pages where the system gives them to shared memory that asks. All pages are there before the first
  // message is: a fault would cost more than the message.
  ::madvise(memory, bytes, MADV_HUGEPAGE);
  return memory;
}

}  // namespace

std::size_t Segment::bytes_for(std::uint64_t message_bytes, std::uint32_t slots) {
  require(is_sound(message_bytes, slots),
          "a channel's messages hold 1 byte to 1 TiB, and its slots are a power of two up to 65,536");
  return ring_bytes(message_bytes, slots);
}

std::shared_ptr<Segment> Segment::create(const Geometry& geometry) {
  const std::size_t bytes = bytes_for(geometry.message_bytes, geometry.slots);
  Descriptor descriptor(::memfd_create("lamina-fhbn", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (descriptor.number() < 0) fail("creating shared memory");
  if (::fchmod(descriptor.number(), S_IRUSR | S_IWUSR) != 0) fail("closing shared memory to others");
  if (::ftruncate(descriptor.number(), static_cast<off_t>(bytes)) != 0) {
    fail("making shared memory of " + std::to_string(bytes) + " bytes");
  }
  if (::fcntl(descriptor.number(), F_ADD_SEALS, kSeals) != 0) fail("sealing shared memory");
  void* memory = map(descriptor.number(), bytes);
  const std::shared_ptr<Segment> segment(new Segment(descriptor.release(), memory, bytes, geometry));
  if (::madvise(memory, bytes, MADV_POPULATE_WRITE) != 0 && errno != EINVAL) {  // EINVAL: before Linux 5.14
    fail("finding " + std::to_string(bytes) + " bytes of memory for a channel");
  }
  Ring& ring = segment->ring();
  ring.preamble = {kMagic, geometry.message_bytes, geometry.first_seqno, geometry.slots, geometry.epoch};
  ring.published.seqno = ring.consumed.seqno = geometry.first_seqno;
  return segment;
}

std::shared_ptr<Segment> Segment::attach(int descriptor) {
  // The seals first: a size that is read after them does not change any more.
  const int seals = ::fcntl(descriptor, F_GET_SEALS);
  struct stat status = {};
  if (::fstat(descriptor, &status) != 0) fail("looking at a peer's shared memory");
  require(seals >= 0 && (seals & kSeals) == kSeals,
          "the peer's shared memory is not sealed: it could be cut off while in use");
  require(status.st_size >= static_cast<off_t>(kSlotsOffset),
          "the peer's shared memory is too small for a ring");
  Descriptor own(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
  if (own.number() < 0) fail("keeping a peer's shared memory");
  const auto bytes = static_cast<std::size_t>(status.st_size);
  void* memory = map(own.number(), bytes);
  Preamble preamble;
  std::memcpy(&preamble, memory, sizeof preamble);
  const Geometry geometry{preamble.message_bytes, preamble.slots, preamble.epoch, preamble.first_seqno};
  const std::shared_ptr<Segment> segment(new Segment(own.release(), memory, bytes, geometry));
  require(preamble.magic == kMagic, "the peer's shared memory is no ring of this version");
  require(is_sound(preamble.message_bytes, preamble.slots), "the peer's ring has an impossible shape");
  require(bytes == ring_bytes(preamble.message_bytes, preamble.slots),
          "the peer's ring is not as large as it says");
  ::madvise(memory, bytes, MADV_POPULATE_WRITE);  // what is missing comes when it is touched
  return segment;
}

RingMemory::RingMemory(int descriptor, void* memory, std::size_t bytes, const Geometry& geometry,
                       bool is_on_device)
    : descriptor_(descriptor),
      memory_(memory),
      bytes_(bytes),
      geometry_(geometry),
      is_on_device_(is_on_device) {}

RingMemory::~RingMemory() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Segment::Segment(int descriptor, void* memory, std::size_t bytes, const Geometry& geometry)
    : RingMemory(descriptor, memory, bytes, geometry, false),
      stride_(slot_stride(geometry.message_bytes)),
      first_slot_(static_cast<std::byte*>(memory) + kSlotsOffset) {}

Segment::~Segment() { ::munmap(memory(), bytes()); }

}  // namespace lamina::fhbn
