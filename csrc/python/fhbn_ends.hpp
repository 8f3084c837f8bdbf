#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "fhbn/errors.hpp"
#include "fhbn/receiver.hpp"
#include "fhbn/sender.hpp"
#include "python/buffer.hpp"

// What the ends of a channel are in Python, whatever moves the bytes: T is an end in C++, with the calls of
// fhbn::Sender or fhbn::Receiver.
namespace lamina {

// Of a number that Python gave; ValueError if none can wait so long.
fhbn::Duration seconds(double s);

// Called by a waiter without the GIL: whether a signal handler has raised, such as Ctrl-C's.
extern const std::function<bool()> kSignalled;

// A channel's end, its default patience, and a guard against a second thread.
template <typename T>
struct End {
  template <typename... Made>
  End(std::string engine_name, double timeout_s, Made&&... made)
      : end(std::forward<Made>(made)...), timeout(seconds(timeout_s)), engine(std::move(engine_name)) {}
  ~End() {
    const nanobind::gil_scoped_release nogil;  // a NIC may be waited for
    end.close();
  }
  End(const End&) = delete;
  End& operator=(const End&) = delete;

  T end;
  fhbn::Duration timeout;
  std::string engine;
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

template <typename T>
fhbn::Patience patience_of(const End<T>& end, std::optional<double> timeout_s) {
  return {timeout_s ? seconds(*timeout_s) : end.timeout, kSignalled};
}

// Copies of less than this are made with the GIL views: giving it up and taking it again costs more.
inline constexpr std::size_t kSmall = 16 << 10;

template <typename T>
void send(End<T>& self, nanobind::args buffers, std::optional<double> timeout_s) {
  const std::size_t count = buffers.size();
  if (count > fhbn::kMostParts) {
    throw nanobind::value_error(
        ("a message has up to " + std::to_string(fhbn::kMostParts) + " parts, not " + std::to_string(count))
            .c_str());
  }
  std::array<Buffer, fhbn::kMostParts> views;
  std::array<std::span<const std::byte>, fhbn::kMostParts> parts;
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < count; ++i) {
    parts[i] = views[i].open(buffers[i]);
    bytes += parts[i].size();
  }
  const fhbn::Patience patience = patience_of(self, timeout_s);
  const Busy<T> busy(self);
  const fhbn::Parts message(parts.data(), count);
  bool sent;
  if (bytes <= kSmall && self.end.is_ready()) {
    sent = self.end.send(message, patience.none());
  } else {
    nanobind::gil_scoped_release nogil;
    sent = self.end.send(message, patience);
  }
  if (!sent) throw nanobind::python_error();
}

// What the handle is of; its type was checked, but not whether __init__ has run.
template <typename T>
T& made(nanobind::handle_t<T> self) {
  if (!nanobind::inst_ready(self)) throw nanobind::type_error("this object was never initialised");
  return *nanobind::inst_ptr<T>(self);
}

// A message, and the end that it came from.
template <typename T>
class Message {
public:
  Message(nanobind::object receiver, const fhbn::Arrived& arrived)
      : receiver_(std::move(receiver)), arrived_(arrived) {}
  Message(Message&& other) noexcept
      : receiver_(std::move(other.receiver_)),
        arrived_(other.arrived_),
        released_(std::exchange(other.released_, true)) {}
  Message& operator=(Message&&) = delete;
  ~Message() { release(); }

  void release() {
    if (!std::exchange(released_, true)) nanobind::inst_ptr<End<T>>(receiver_)->end.give_back(arrived_.seqno);
  }
  const fhbn::Arrived& arrived() const { return arrived_; }

private:
  nanobind::object receiver_;
  fhbn::Arrived arrived_;
  bool released_ = false;
};

// What a memoryview of a part is over; it keeps the message.
struct Part {
  nanobind::object message;
  std::span<std::byte> bytes;
};

template <typename T>
Message<T> recv(nanobind::handle_t<End<T>> receiver, std::optional<double> timeout_s) {
  End<T>& self = made(receiver);
  const fhbn::Patience patience = patience_of(self, timeout_s);
  const Busy<T> busy(self);
  std::optional<fhbn::Arrived> arrived;
  if (self.end.is_ready()) {
    arrived = self.end.receive(patience.none());
  } else {
    nanobind::gil_scoped_release nogil;
    arrived = self.end.receive(patience);
  }
  if (!arrived) throw nanobind::python_error();
  return Message<T>(nanobind::borrow(receiver), *arrived);
}

template <typename T>
bool ready(End<T>& self, double timeout_s) {
  const fhbn::Duration timeout = seconds(timeout_s);
  if (self.end.has_message()) return true;
  if (timeout == fhbn::Duration::zero()) return false;
  const Busy<T> busy(self);
  fhbn::Woken woken;
  {
    nanobind::gil_scoped_release nogil;
    woken = self.end.await({timeout, kSignalled});
  }
  if (woken == fhbn::Woken::kInterrupted) throw nanobind::python_error();
  return woken == fhbn::Woken::kReady;
}

template <typename T>
nanobind::object part_of(nanobind::handle_t<Message<T>> message, Py_ssize_t index) {
  const fhbn::Arrived& arrived = made(message).arrived();
  const auto count = static_cast<Py_ssize_t>(arrived.count);
  if (index < 0) index += count;
  if (index < 0 || index >= count) throw nanobind::index_error("a message has no such part");
  const std::span<std::byte> bytes = arrived.parts[static_cast<std::size_t>(index)];
  nanobind::object part = nanobind::cast(Part{nanobind::borrow(message), bytes});
  return nanobind::steal(PyMemoryView_FromObject(part.ptr()));
}

// All but how it is made.
template <typename T>
auto bind_end(nanobind::module_& m, const char* name, const char* doc) {
  using Bound = End<T>;
  return nanobind::class_<Bound>(m, name, doc, nanobind::is_final())
      .def("close",
           [](Bound& self) {
             const Busy<T> busy(self);
             const nanobind::gil_scoped_release nogil;  // a NIC may be waited for
             self.end.close();
           })
      .def_prop_ro("engine", [](const Bound& self) { return self.engine; })
      .def_prop_ro("peer", [](const Bound& self) { return self.end.peer().name(); })
      .def_prop_ro("next_seqno", [](const Bound& self) { return self.end.next_seqno(); })
      .def_prop_ro("consumed", [](const Bound& self) { return self.end.consumed(); })
      .def_prop_ro("epoch", [](const Bound& self) { return self.end.segment().geometry().epoch; })
      .def_prop_ro("waits", [](const Bound& self) {
        return std::pair(self.end.waiter().spun(), self.end.waiter().slept());
      });
}

template <typename T>
auto bind_sender(nanobind::module_& m, const char* name, const char* doc) {
  using namespace nanobind::literals;
  return bind_end<T>(m, name, doc)
      .def(
          "send", &send<T>, "buffers"_a, "timeout_s"_a = nanobind::none(),
          nanobind::sig("def send(self, *buffers: object, timeout_s: float | None = None) -> None"),
          R"(Send the bytes of up to 14 buffers (contiguous arrays, CPU tensors, bytes) as the parts of one message.

Waits for a free slot; the message is there, whole, when this returns. What raises has sent nothing.)");
}

template <typename T>
auto bind_receiver(nanobind::module_& m, const char* name, const char* doc) {
  using namespace nanobind::literals;
  return bind_end<T>(m, name, doc)
      .def("recv", &recv<T>, "timeout_s"_a = nanobind::none(),
           "Wait for the next message. It lies in the ring and holds its slot until it is released.")
      .def("ready", &ready<T>, "timeout_s"_a = 0.0, R"(Whether a message is there, or comes in this time.

Only one that has to wait notices the peer's end, and raises it as recv() does.)");
}

template <typename T>
void bind_message(nanobind::module_& m, const char* name) {
  using namespace nanobind::literals;
  nanobind::class_<Message<T>>(
      m, name, R"(A received message: a sequence of memoryviews of its parts, where they lie in the ring.

Its slot goes back to the sender by release(), by leaving `with`, or when the message and all views of it are
deleted. After release() the views still exist, but the sender may write there.)",
      nanobind::is_final())
      .def("__len__", [](const Message<T>& self) { return self.arrived().count; })
      .def("__getitem__", &part_of<T>, "index"_a,
           nanobind::sig("def __getitem__(self, index: int) -> memoryview"))
      .def_prop_ro("seqno", [](const Message<T>& self) { return self.arrived().seqno; })
      .def("release", &Message<T>::release)
      .def("__enter__", [](nanobind::typed<nanobind::object, Message<T>> self) { return self; })
      .def(
          "__exit__", [](Message<T>& self, nanobind::args) { self.release(); },
          nanobind::sig("def __exit__(self, *exc: object) -> None"));
}

}  // namespace lamina
