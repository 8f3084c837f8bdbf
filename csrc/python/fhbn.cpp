#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fhbn/cache_line.hpp"
#include "fhbn/copy.hpp"
#include "fhbn/errors.hpp"
#include "fhbn/receiver.hpp"
#include "fhbn/sender.hpp"
#include "python/bindings.hpp"
#include "python/buffer.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace lamina {

namespace {

using fhbn::Duration;

constexpr const char* kRoundTripDoc =
    R"(Seconds that a cache line takes from one core to another and back, the median of `rounds`.)";

constexpr const char* kCopyDoc =
    R"(The copy that a sender makes, between two private buffers: what a channel could at most reach.)";

constexpr const char* kSegmentDoc =
    R"(Memory with a channel's ring in it, which another process attaches to by its file descriptor.

It has no name in any file system and goes when the last process that maps it ends.)";

constexpr const char* kSenderDoc =
    R"(The sending end of a channel in shared memory. For one thread at a time.)";

constexpr const char* kSendDoc =
    R"(Send the bytes of up to 14 buffers (contiguous arrays, CPU tensors, bytes) as the parts of one message.

Waits for a free slot; the message is there, whole, when this returns. What raises has sent nothing.)";

constexpr const char* kReceiverDoc =
    R"(The receiving end of a channel in shared memory. For one thread at a time.)";

constexpr const char* kRecvDoc =
    R"(Wait for the next message. It lies in the ring and holds its slot until it is released.)";

constexpr const char* kReadyDoc =
    R"(Whether a message is there, or comes in this time.

Only one that has to wait notices the peer's end, and raises it as recv() does.)";

constexpr const char* kMessageDoc =
    R"(A received message: a sequence of memoryviews of its parts, where they lie in the ring.

Its slot goes back to the sender by release(), by leaving `with`, or when the message and all views of it are
gone. After release() the views still exist, but the sender may write there.)";

Duration seconds(double s) {
  if (std::isnan(s) || s < 0) throw nb::value_error("a time to wait is a number of seconds, 0 or more");
  constexpr double kLongest = 1e9;  // thirty years, and no overflow
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(std::min(s, kLongest)));
}

// A channel's end, its default patience, and a guard against a second thread.
template <typename T>
struct End {
  End(std::shared_ptr<fhbn::Segment> segment, std::string peer, const std::vector<int>& watched,
      double timeout_s, double spin_s)
      : end(std::move(segment), std::make_shared<fhbn::Peer>(std::move(peer), watched), seconds(spin_s)),
        timeout(seconds(timeout_s)) {}

  T end;
  Duration timeout;
  std::atomic<bool> busy = false;
};

template <typename T>
class Busy {
public:
  explicit Busy(End<T>& end) : end_(end) {
    if (end_.busy.exchange(true))
      throw fhbn::ChannelError("this end of a channel is in use by another thread");
  }
  ~Busy() { end_.busy = false; }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

private:
  End<T>& end_;
};

// Asked by a waiter without the GIL: whether a signal handler has raised, such as Ctrl-C's.
const std::function<bool()> kSignalled = [] {
  nb::gil_scoped_acquire gil;
  return PyErr_CheckSignals() != 0;
};

template <typename T>
fhbn::Patience patience_of(const End<T>& end, std::optional<double> timeout_s) {
  return {timeout_s ? seconds(*timeout_s) : end.timeout, kSignalled};
}

// Copies of less than this are made with the GIL held: giving it up and taking it again costs more.
constexpr std::size_t kSmall = 16 << 10;

void send(End<fhbn::Sender>& self, nb::args buffers, std::optional<double> timeout_s) {
  const std::size_t count = buffers.size();
  if (count > fhbn::kMostParts) {
    throw nb::value_error(
        ("a message has up to " + std::to_string(fhbn::kMostParts) + " parts, not " + std::to_string(count))
            .c_str());
  }
  std::array<Buffer, fhbn::kMostParts> held;
  std::array<std::span<const std::byte>, fhbn::kMostParts> parts;
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < count; ++i) {
    parts[i] = held[i].open(buffers[i]);
    bytes += parts[i].size();
  }
  const fhbn::Patience patience = patience_of(self, timeout_s);
  const Busy<fhbn::Sender> busy(self);
  const fhbn::Parts message(parts.data(), count);
  bool sent;
  if (bytes <= kSmall && self.end.is_ready()) {
    sent = self.end.send(message, patience.none());
  } else {
    nb::gil_scoped_release nogil;
    sent = self.end.send(message, patience);
  }
  if (!sent) throw nb::python_error();
}

void channel_copy(nb::handle to, nb::handle source) {
  Buffer target, origin;
  const std::span<std::byte> into = target.open_writable(to);
  const std::span<const std::byte> from = origin.open(source);
  if (into.size() != from.size() ||
      reinterpret_cast<std::uintptr_t>(into.data()) % fhbn::kPartAlignment != 0) {
    throw nb::value_error("what is copied to is as large as the source and begins at a multiple of 64");
  }
  nb::gil_scoped_release nogil;
  fhbn::copy(into.data(), from);
}

using ReceiverEnd = End<fhbn::Receiver>;

// What the handle is of; its type was checked, but not whether __init__ has run.
template <typename T>
T& made(nb::handle_t<T> self) {
  if (!nb::inst_ready(self)) throw nb::type_error("this object was never initialised");
  return *nb::inst_ptr<T>(self);
}

class Message {
public:
  Message(nb::object receiver, const fhbn::Arrived& arrived)
      : receiver_(std::move(receiver)), arrived_(arrived) {}
  Message(Message&& other) noexcept
      : receiver_(std::move(other.receiver_)),
        arrived_(other.arrived_),
        released_(std::exchange(other.released_, true)) {}
  Message& operator=(Message&&) = delete;
  ~Message() { release(); }

  void release() {
    if (!std::exchange(released_, true)) nb::inst_ptr<ReceiverEnd>(receiver_)->end.give_back(arrived_.seqno);
  }
  const fhbn::Arrived& arrived() const { return arrived_; }

private:
  nb::object receiver_;
  fhbn::Arrived arrived_;
  bool released_ = false;
};

// What a memoryview of a part is over; it keeps the message.
struct Part {
  nb::object message;
  std::span<std::byte> bytes;
};

int view_part(PyObject* self, Py_buffer* view, int flags) {
  const auto& bytes = nb::inst_ptr<Part>(self)->bytes;
  return PyBuffer_FillInfo(view, self, bytes.data(), static_cast<Py_ssize_t>(bytes.size()), 0, flags);
}

PyType_Slot kPartSlots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(view_part)}, {0, nullptr}};

Message recv(nb::handle_t<ReceiverEnd> receiver, std::optional<double> timeout_s) {
  ReceiverEnd& self = made(receiver);
  const fhbn::Patience patience = patience_of(self, timeout_s);
  const Busy<fhbn::Receiver> busy(self);
  std::optional<fhbn::Arrived> arrived;
  if (self.end.is_ready()) {
    arrived = self.end.receive(patience.none());
  } else {
    nb::gil_scoped_release nogil;
    arrived = self.end.receive(patience);
  }
  if (!arrived) throw nb::python_error();
  return Message(nb::borrow(receiver), *arrived);
}

bool ready(ReceiverEnd& self, double timeout_s) {
  const Duration timeout = seconds(timeout_s);
  if (self.end.has_message()) return true;
  if (timeout == Duration::zero()) return false;
  const Busy<fhbn::Receiver> busy(self);
  fhbn::Woken woken;
  {
    nb::gil_scoped_release nogil;
    woken = self.end.await({timeout, kSignalled});
  }
  if (woken == fhbn::Woken::kAsked) throw nb::python_error();
  return woken == fhbn::Woken::kReady;
}

nb::object part_of(nb::handle_t<Message> message, Py_ssize_t index) {
  const fhbn::Arrived& arrived = made(message).arrived();
  const auto count = static_cast<Py_ssize_t>(arrived.count);
  if (index < 0) index += count;
  if (index < 0 || index >= count) throw nb::index_error("a message has no such part");
  nb::object part = nb::cast(Part{nb::borrow(message), arrived.parts[static_cast<std::size_t>(index)]});
  return nb::steal(PyMemoryView_FromObject(part.ptr()));
}

template <typename T>
auto bind_end(nb::module_& m, const char* name, const char* doc) {
  using Bound = End<T>;
  return nb::class_<Bound>(m, name, doc, nb::is_final())
      .def(nb::init<std::shared_ptr<fhbn::Segment>, std::string, std::vector<int>, double, double>(),
           "segment"_a, "peer"_a, "watched"_a = std::vector<int>(), nb::kw_only(), "timeout_s"_a, "spin_s"_a)
      .def("close",
           [](Bound& self) {
             const Busy<T> busy(self);
             self.end.close();
           })
      .def_prop_ro("engine", [](const Bound&) { return "shm"; })
      .def_prop_ro("peer", [](const Bound& self) { return self.end.peer().name(); })
      .def_prop_ro("next_seqno", [](const Bound& self) { return self.end.next_seqno(); })
      .def_prop_ro("consumed", [](const Bound& self) { return self.end.consumed(); })
      .def_prop_ro("epoch", [](const Bound& self) { return self.end.segment().geometry().epoch; })
      .def_prop_ro("waits", [](const Bound& self) {
        return nb::make_tuple(self.end.waiter().spun(), self.end.waiter().slept());
      });
}

}  // namespace

void bind_fhbn(nb::module_& m) {
  m.attr("_MOST_PARTS") = fhbn::kMostParts;
  m.def("cache_line_round_trip_s", &fhbn::cache_line_round_trip_s, "first_cpu"_a, "second_cpu"_a, "rounds"_a,
        nb::call_guard<nb::gil_scoped_release>(), kRoundTripDoc);
  m.def("channel_copy", &channel_copy, "to"_a, "source"_a, kCopyDoc);
  nb::class_<fhbn::Segment>(m, "ShmSegment", kSegmentDoc, nb::is_final())
      .def_static(
          "create",
          [](std::uint64_t message_bytes, std::uint32_t slots, std::uint32_t epoch,
             std::uint64_t first_seqno) {
            return fhbn::Segment::create({message_bytes, slots, epoch, first_seqno});
          },
          "message_bytes"_a, "slots"_a, nb::kw_only(), "epoch"_a, "first_seqno"_a,
          nb::call_guard<nb::gil_scoped_release>())
      .def_static("bytes_for", &fhbn::Segment::bytes_for, "message_bytes"_a, "slots"_a)
      .def_static("attach", &fhbn::Segment::attach, "descriptor"_a, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("descriptor", &fhbn::Segment::descriptor)
      .def_prop_ro("nbytes", &fhbn::Segment::bytes)
      .def_prop_ro("address",
                   [](const fhbn::Segment& s) { return reinterpret_cast<std::uintptr_t>(s.memory()); })
      .def_prop_ro("message_bytes", [](const fhbn::Segment& s) { return s.geometry().message_bytes; })
      .def_prop_ro("slots", [](const fhbn::Segment& s) { return s.geometry().slots; })
      .def_prop_ro("epoch", [](const fhbn::Segment& s) { return s.geometry().epoch; })
      .def_prop_ro("first_seqno", [](const fhbn::Segment& s) { return s.geometry().first_seqno; });

  bind_end<fhbn::Sender>(m, "ShmSender", kSenderDoc)
      .def("send", &send, "buffers"_a, "timeout_s"_a = nb::none(), kSendDoc);
  bind_end<fhbn::Receiver>(m, "ShmReceiver", kReceiverDoc)
      .def("recv", &recv, "timeout_s"_a = nb::none(), kRecvDoc)
      .def("ready", &ready, "timeout_s"_a = 0.0, kReadyDoc);

  // Seen by nobody: a memoryview is what one gets.
  nb::class_<Part>(m, "_ShmPart", nb::is_final(), nb::type_slots(kPartSlots));
  nb::class_<Message>(m, "ShmMessage", kMessageDoc, nb::is_final())
      .def("__len__", [](const Message& self) { return self.arrived().count; })
      .def("__getitem__", &part_of, "index"_a)
      .def_prop_ro("seqno", [](const Message& self) { return self.arrived().seqno; })
      .def("release", &Message::release)
      .def("__enter__", [](nb::object self) { return self; })
      .def("__exit__", [](Message& self, nb::args) { self.release(); });
}

}  // namespace lamina
