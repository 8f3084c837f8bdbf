#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "fhbn/cache_line.hpp"
#include "fhbn/errors.hpp"
#include "fhbn/receiver.hpp"
#include "fhbn/sender.hpp"
#include "python/bindings.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace lamina {

namespace {

using fhbn::Duration;

constexpr const char* kRoundTripDoc =
    R"(Seconds that a cache line takes from one core to another and back, the median of `rounds`.)";

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

constexpr const char* kMessageDoc =
    R"(A received message: a sequence of memoryviews of its parts, where they lie in the ring.

Its slot goes back to the sender by release(), by leaving `with`, or when the message and all views of it are
gone. After release() the views still exist, but the sender may write there.)";

// Raised as a Python error of the same meaning.
nb::object new_error(nb::module_& m, const char* name, const char* doc, nb::tuple bases) {
  const std::string qualified = std::string("lamina._native.") + name;
  nb::object type = nb::steal(PyErr_NewExceptionWithDoc(qualified.c_str(), doc, bases.ptr(), nullptr));
  m.attr(name) = type;
  return type;
}

struct Errors {
  PyObject* base;
  PyObject* lost;
  PyObject* closed;
  PyObject* timeout;
  PyObject* corrupted;
};

void translate(const std::exception_ptr& thrown, void* payload) {
  const auto& errors = *static_cast<const Errors*>(payload);
  try {
    std::rethrow_exception(thrown);
  } catch (const fhbn::PeerLost& error) {
    PyErr_SetString(errors.lost, error.what());
  } catch (const fhbn::ChannelClosed& error) {
    PyErr_SetString(errors.closed, error.what());
  } catch (const fhbn::DeadlinePassed& error) {
    PyErr_SetString(errors.timeout, error.what());
  } catch (const fhbn::Corrupted& error) {
    PyErr_SetString(errors.corrupted, error.what());
  } catch (const fhbn::ChannelError& error) {
    PyErr_SetString(errors.base, error.what());
  } catch (const std::system_error& error) {
    nb::object arguments = nb::make_tuple(error.code().value(), error.what());
    PyErr_SetObject(PyExc_OSError, arguments.ptr());
  }
}

void bind_errors(nb::module_& m) {
  static Errors errors;  // the module is never unloaded
  const nb::handle os_timeout = PyExc_TimeoutError;
  nb::object base = new_error(m, "ChannelError", "A channel cannot do what was asked.",
                              nb::make_tuple(nb::handle(PyExc_RuntimeError)));
  errors.base = base.ptr();
  errors.lost =
      new_error(m, "PeerLostError", "The peer has ended without closing its end.", nb::make_tuple(base))
          .ptr();
  errors.closed =
      new_error(m, "ChannelClosedError", "One of the ends was closed.", nb::make_tuple(base)).ptr();
  errors.timeout = new_error(m, "ChannelTimeoutError",
                             "Nothing happened in time; the channel is as it was before the call.",
                             nb::make_tuple(base, os_timeout))
                       .ptr();
  errors.corrupted = new_error(m, "ChannelCorruptedError",
                               "The peer has written what no peer of ours writes.", nb::make_tuple(base))
                         .ptr();
  nb::register_exception_translator(translate, &errors);
}

Duration seconds(double s) {
  if (std::isnan(s) || s < 0) throw nb::value_error("a time to wait is a number of seconds, 0 or more");
  constexpr double kLongest = 1e9;  // thirty years, and no overflow
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(std::min(s, kLongest)));
}

// A channel's end, its default patience, and a guard against a second thread.
template <typename T>
struct End {
  End(std::shared_ptr<fhbn::Segment> segment, std::string peer, int peer_descriptor, double timeout_s,
      double spin_s)
      : end(std::move(segment), std::make_shared<fhbn::Peer>(std::move(peer), peer_descriptor),
            seconds(spin_s)),
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

// The bytes of one argument, held while this lives.
class Buffer {
public:
  Buffer() = default;
  ~Buffer() {
    if (view_.obj != nullptr) PyBuffer_Release(&view_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::span<const std::byte> open(nb::handle from) {
    if (PyObject_CheckBuffer(from.ptr())) {
      if (PyObject_GetBuffer(from.ptr(), &view_, PyBUF_SIMPLE) != 0) throw nb::python_error();
      return {static_cast<const std::byte*>(view_.buf), static_cast<std::size_t>(view_.len)};
    }
    if (nb::hasattr(from, "data_ptr")) return tensor(from);
    throw nb::type_error("a message is made of contiguous arrays and tensors in host memory, and of bytes");
  }

private:
  // torch has no buffer protocol, and DLPack takes ten times as long as asking for what is needed. The
  // caller's reference keeps the memory.
  static std::span<const std::byte> tensor(nb::handle from) {
    if (!nb::cast<bool>(from.attr("is_cpu"))) throw nb::type_error("a tensor to send must be in host memory");
    if (!nb::cast<bool>(from.attr("is_contiguous")())) {
      throw nb::value_error("a tensor to send must be contiguous");
    }
    const auto address = nb::cast<std::uintptr_t>(from.attr("data_ptr")());
    return {reinterpret_cast<const std::byte*>(address), nb::cast<std::size_t>(from.attr("nbytes"))};
  }

  Py_buffer view_{};
};

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
    sent = self.end.send(message, patience);
  } else {
    nb::gil_scoped_release nogil;
    sent = self.end.send(message, patience);
  }
  if (!sent) throw nb::python_error();
}

using ReceiverEnd = End<fhbn::Receiver>;

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

Message recv(nb::object receiver, std::optional<double> timeout_s) {
  ReceiverEnd& self = *nb::inst_ptr<ReceiverEnd>(receiver);
  const fhbn::Patience patience = patience_of(self, timeout_s);
  const Busy<fhbn::Receiver> busy(self);
  std::optional<fhbn::Arrived> arrived;
  if (self.end.is_ready()) {
    arrived = self.end.receive(patience);
  } else {
    nb::gil_scoped_release nogil;
    arrived = self.end.receive(patience);
  }
  if (!arrived) throw nb::python_error();
  return Message(std::move(receiver), *arrived);
}

nb::object part_of(nb::object message, Py_ssize_t index) {
  const fhbn::Arrived& arrived = nb::inst_ptr<Message>(message)->arrived();
  const auto count = static_cast<Py_ssize_t>(arrived.count);
  if (index < 0) index += count;
  if (index < 0 || index >= count) throw nb::index_error("a message has no such part");
  nb::object part = nb::cast(Part{std::move(message), arrived.parts[static_cast<std::size_t>(index)]});
  return nb::steal(PyMemoryView_FromObject(part.ptr()));
}

template <typename T>
auto bind_end(nb::module_& m, const char* name, const char* doc) {
  using Bound = End<T>;
  return nb::class_<Bound>(m, name, doc, nb::is_final())
      .def(nb::init<std::shared_ptr<fhbn::Segment>, std::string, int, double, double>(), "segment"_a,
           "peer"_a, "peer_descriptor"_a = -1, nb::kw_only(), "timeout_s"_a, "spin_s"_a)
      .def("close", [](Bound& self) { self.end.close(); })
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
  bind_errors(m);
  m.def("cache_line_round_trip_s", &fhbn::cache_line_round_trip_s, "first_cpu"_a, "second_cpu"_a, "rounds"_a,
        nb::call_guard<nb::gil_scoped_release>(), kRoundTripDoc);
  nb::class_<fhbn::Segment>(m, "ShmSegment", kSegmentDoc, nb::is_final())
      .def_static(
          "create",
          [](std::uint64_t message_bytes, std::uint32_t slots, std::uint32_t epoch,
             std::uint64_t first_seqno) {
            return fhbn::Segment::create({message_bytes, slots, epoch, first_seqno});
          },
          "message_bytes"_a, "slots"_a, nb::kw_only(), "epoch"_a, "first_seqno"_a)
      .def_static("bytes_for", &fhbn::Segment::bytes_for, "message_bytes"_a, "slots"_a)
      .def_static("attach", &fhbn::Segment::attach, "descriptor"_a)
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
      .def("recv", &recv, "timeout_s"_a = nb::none(), kRecvDoc);

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
