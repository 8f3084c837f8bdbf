#include "core/slab.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "python/arrays.hpp"
#include "python/bindings.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace lamina {

namespace {

using Batch = Input<RequestId>;

}  // namespace

// Every call keeps the GIL: it is the lock that makes a Slab safe to share between Python threads, and the
// longest call, a batch of thousands, takes less time than a thread switch.
void bind_slab(nb::module_& m) {
  nb::exception<SlabFull>(m, "SlabFullError", PyExc_RuntimeError);
  nb::register_exception_translator([](const std::exception_ptr& p, void*) {
    try {
      std::rethrow_exception(p);
    } catch (const UnknownRequest& error) {
      PyErr_SetString(PyExc_KeyError, error.what());
    }
  });

  nb::class_<Slab>(
      m, "Slab", nb::is_final(),
      R"(Hands out the KV arena's slots one token at a time and remembers which request holds which.

Slots are numbered 0 to capacity - 1. Requests are the caller's own 64-bit ids. Every call either happens
completely or raises and changes nothing: SlabFullError when slots run out, KeyError for a request that is
not here, ValueError for a count or a batch that makes no sense. Not for use by two threads at once without
the GIL.

With a window (tokens that one sees, itself included) or a chunk (tokens that see only each other, counted from
the request's first) a request holds the slots of those of its tokens that the newest one sees, and others are
free again: later tokens do not see them either.)")
      .def(
          "__init__",
          [](Slab* self, std::int64_t capacity, int window, int chunk) {
            new (self) Slab(capacity, {window, chunk});
          },
          "capacity"_a, "window"_a = 0, "chunk"_a = 0)
      .def(
          "allocate",
          [](Slab& slab, RequestId request, std::int64_t n) { return array_of(slab.allocate(request, n)); },
          "request"_a, "n"_a,
          R"(Append n tokens to a request, which begins to exist if it is new; return its n new slots.

With a window or a chunk, those of the tokens that the last one sees.)")
      .def(
          "extend",
          [](Slab& slab, const Batch& requests, std::int64_t n) {
            return array_of(slab.extend(span_of(requests), n));
          },
          "requests"_a.noconvert(), "n"_a = 1,
          R"(Append n tokens to every request of a batch (int64 array, none twice); return all the new slots.

The slots of requests[i] are result[i * n : (i + 1) * n]. The result is the caller's own array. With a window or
a chunk n is 1 at most, and slots of what is no longer visible are given back; the requested number has to
be free all the same.)")
      .def("fork", &Slab::fork, "parent"_a, "child"_a, "n"_a = nb::none(),
           R"(Begin `child` as a new request that shares the first n (default: all) tokens of `parent`.

Nothing is copied but indices: the slots are shared and counted, and each request grows by itself after. With a
window or a chunk, what `parent` still holds of them; a child that lacks tokens it sees cannot grow.)")
      .def("release", nb::overload_cast<RequestId>(&Slab::release), "request"_a,
           R"(Forget a request, or every request of a batch (int64 array, none twice).

A slot becomes free when its last owner goes. What is freed last is handed out first.)")
      .def(
          "release", [](Slab& slab, const Batch& requests) { slab.release(span_of(requests)); },
          "requests"_a.noconvert())
      .def(
          "indices",
          [](const Slab& slab, RequestId request) {
            Slab::View view = slab.indices(request);
            const Slot* data = view.slots.get();
            return array_over(data, view.size, std::move(view.slots));
          },
          "request"_a,
          R"(The slots the request holds in token order: a read-only view of the slab's own list, without a copy.

It is a snapshot: it stays valid and keeps its length and contents when the request grows or is released.
The slots it names, though, may belong to another request once this one is released.)")
      .def(
          "lists",
          [](const Slab& slab, const Batch& requests) {
            std::vector<Slab::View> views;
            std::vector<std::int64_t> offsets{0};
            for (const RequestId request : span_of(requests)) {
              views.push_back(slab.indices(request));
              offsets.push_back(offsets.back() + static_cast<std::int64_t>(views.back().size));
            }
            const auto count = static_cast<std::size_t>(offsets.back());
            auto slots = std::make_unique_for_overwrite<Slot[]>(count);
            Slot* next = slots.get();
            for (const Slab::View& view : views) next = std::copy_n(view.slots.get(), view.size, next);
            Slot* const data = slots.get();
            return std::pair(array_of(std::span<const std::int64_t>(offsets)),
                             array_over(data, count, std::move(slots)));
          },
          "requests"_a.noconvert(),
          R"(Of a batch (int64 array) all indices() one behind the other: offsets, where each begins and the last
ends, and slots.)")
      .def("length", &Slab::length, "request"_a, "How many tokens the request has, with and without slots.")
      .def("refcount", &Slab::refcount, "slot"_a, "How many requests hold the slot.")
      .def(
          "requests", [](const Slab& slab) { return array_of(std::span<const RequestId>(slab.requests())); },
          "The ids of all requests, in no particular order.")
      .def("check_integrity", &Slab::check_integrity,
           R"(Recount everything; raise RuntimeError naming the first broken invariant.

Visits every slot and every token: for tests and idle moments.)")
      .def_prop_ro("capacity", &Slab::capacity, "How many slots there are.")
      .def_prop_ro("used", &Slab::used, "How many slots requests hold, a shared slot counted once.")
      .def_prop_ro("free", &Slab::free, "How many slots are left.")
      .def("__contains__", &Slab::contains, "request"_a)
      .def("__len__", &Slab::request_count)
      .def("__repr__", [](const Slab& slab) {
        return "Slab(capacity=" + std::to_string(slab.capacity()) + ", used=" + std::to_string(slab.used()) +
               ", requests=" + std::to_string(slab.request_count()) + ")";
      });
}

}  // namespace lamina
