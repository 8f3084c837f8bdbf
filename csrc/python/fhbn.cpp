#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fhbn/cache_line.hpp"
#include "fhbn/errors.hpp"
#include "fhbn/receiver.hpp"
#include "fhbn/sender.hpp"
#include "python/bindings.hpp"
#include "python/buffer.hpp"
#include "python/fhbn_ends.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace lamina {

namespace {

using fhbn::Duration;

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

int view_part(PyObject* self, Py_buffer* view, int flags) {
  const auto& bytes = nb::inst_ptr<Part>(self)->bytes;
  return PyBuffer_FillInfo(view, self, bytes.data(), static_cast<Py_ssize_t>(bytes.size()), 0, flags);
}

PyType_Slot kPartSlots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(view_part)}, {0, nullptr}};

// The ring, its owner's or attached to; the other end's name, and what shows its end.
template <typename T>
void make_end(End<T>* self, std::shared_ptr<fhbn::Segment> segment, std::string peer,
              const std::vector<int>& watched, double timeout_s, double spin_s) {
  new (self) End<T>("shm", timeout_s, std::move(segment),
                    std::make_shared<fhbn::Peer>(std::move(peer), watched), seconds(spin_s));
}

template <typename T, typename Class>
void bind_init(Class bound) {
  bound.def("__init__", &make_end<T>, "segment"_a, "peer"_a, "watched"_a = std::vector<int>(), nb::kw_only(),
            "timeout_s"_a, "spin_s"_a);
}

}  // namespace

Duration seconds(double s) {
  if (std::isnan(s) || s < 0) throw nb::value_error("a time to wait is a number of seconds, 0 or more");
  constexpr double kLongest = 1e9;  // thirty years, and no overflow
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(std::min(s, kLongest)));
}

const std::function<bool()> kSignalled = [] {
  nb::gil_scoped_acquire gil;
  return PyErr_CheckSignals() != 0;
};

void bind_fhbn(nb::module_& m) {
  m.attr("_MOST_PARTS") = fhbn::kMostParts;
  m.def("cache_line_round_trip_s", &fhbn::cache_line_round_trip_s, "first_cpu"_a, "second_cpu"_a, "rounds"_a,
        nb::call_guard<nb::gil_scoped_release>(),
        "Seconds that a cache line takes from one core to another and back, the median of `rounds`.");
  m.def("channel_copy", &channel_copy, "to"_a, "source"_a,
        "The copy that a sender makes, between two private buffers: what a channel could at most reach.");
  nb::class_<fhbn::RingMemory>(m, "RingMemory", "Memory with a channel's ring in it, or the mirror of one.")
      .def_prop_ro("descriptor", &fhbn::RingMemory::descriptor)
      .def_prop_ro("nbytes", &fhbn::RingMemory::bytes)
      .def_prop_ro("address",
                   [](const fhbn::RingMemory& r) { return reinterpret_cast<std::uintptr_t>(r.memory()); })
      .def_prop_ro("on_device", &fhbn::RingMemory::is_on_device)
      .def_prop_ro("message_bytes", [](const fhbn::RingMemory& r) { return r.geometry().message_bytes; })
      .def_prop_ro("slots", [](const fhbn::RingMemory& r) { return r.geometry().slots; })
      .def_prop_ro("epoch", [](const fhbn::RingMemory& r) { return r.geometry().epoch; })
      .def_prop_ro("first_seqno", [](const fhbn::RingMemory& r) { return r.geometry().first_seqno; });
  nb::class_<fhbn::Segment, fhbn::RingMemory>(
      m, "ShmSegment",
      R"(Memory with a channel's ring in it, which another process attaches to by its file descriptor.

It has no name in any file system and goes when the last process that maps it ends.)",
      nb::is_final())
      .def_static(
          "create",
          [](std::uint64_t message_bytes, std::uint32_t slots, std::uint32_t epoch,
             std::uint64_t first_seqno) {
            return fhbn::Segment::create({message_bytes, slots, epoch, first_seqno});
          },
          "message_bytes"_a, "slots"_a, nb::kw_only(), "epoch"_a, "first_seqno"_a,
          nb::call_guard<nb::gil_scoped_release>())
      .def_static("bytes_for", &fhbn::Segment::bytes_for, "message_bytes"_a, "slots"_a)
      .def_static("attach", &fhbn::Segment::attach, "descriptor"_a, nb::call_guard<nb::gil_scoped_release>());

  bind_init<fhbn::Sender>(bind_sender<fhbn::Sender>(
      m, "ShmSender", "The sending end of a channel in shared memory. For one thread at a time."));
  bind_init<fhbn::Receiver>(bind_receiver<fhbn::Receiver>(
      m, "ShmReceiver", "The receiving end of a channel in shared memory. For one thread at a time."));
  bind_message<fhbn::Receiver>(m, "ShmMessage");
  // Not seen in Python: a memoryview of it is.
  nb::class_<Part>(m, "_ShmPart", nb::is_final(), nb::type_slots(kPartSlots));
}

}  // namespace lamina
