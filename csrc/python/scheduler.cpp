#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/live_scheduler.hpp"
#include "core/rotation.hpp"
#include "python/arrays.hpp"
#include "python/bindings.hpp"
#include "python/names.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace lamina {

namespace {

using Rows = Array<Scheduler::Index>;

Rows rows_of(const std::vector<Scheduler::Index>& rows) {
  return array_of(std::span<const Scheduler::Index>(rows));
}

}  // namespace

void bind_scheduler(nb::module_& m) {
  nb::class_<Rotation>(
      m, "Rotation", nb::is_final(),
      "Which replica of the model runs which slice: the definition that the virtual cluster goes by too.")
      .def(
          "__init__",
          [](Rotation* self, const std::string& pipelining, int batches) {
            const Pipelining kind = pipelining_named(pipelining);
            if (batches < 1 || (kind == Pipelining::kSerial && batches != 1))
              throw std::invalid_argument("serial has one batch, the others one or more");
            new (self) Rotation{kind, batches};
          },
          "pipelining"_a, "batches"_a)
      .def("replica", &Rotation::replica, "batch"_a, "tick"_a,
           "The replica, from 0, of a batch's slice number `tick`, counted from the start of the cluster.")
      .def_prop_ro("replicas", &Rotation::replicas)
      .def_prop_ro("migrates", &Rotation::migrates,
                   "Whether a batch's next slice runs elsewhere, so that its context has to travel.");

  nb::class_<LiveScheduler>(
      m, "LiveScheduler", nb::is_final(),
      R"(Continuous batching over shared KV memory: what waits, what runs in which batch, what makes room.

The scheduler of the virtual cluster, for requests that come one by one. A request has a row from add() until
remove() or until finish() names it; then the row may become another's. For each batch, advance() and
finish() alternate: advance() before an iteration, finish() after it.)")
      .def(
          "__init__",
          [](LiveScheduler* self, std::int64_t tokens, std::int64_t max_sequences, int batches, int pools,
             const std::string& admission, bool staged, std::int64_t min_batch) {
            if (tokens < 1 || max_sequences < 1 || batches < 1 || pools < 1 || min_batch < 1)
              throw std::invalid_argument(
                  "tokens, max_sequences, batches, pools and min_batch are at least 1");
            SchedulerLimits limits{batches,       pools, tokens, 1, admission_named(admission),
                                   max_sequences, staged};
            limits.min_batch = min_batch;
            new (self) LiveScheduler(limits);
          },
          "tokens"_a, "max_sequences"_a, nb::kw_only(), "batches"_a = 1, "pools"_a = 1,
          "admission"_a = "reserve", "staged"_a = false, "min_batch"_a = 1,
          R"(`min_batch` sequences are what each batch should have: with fewer in all, fewer batches take turns.)")
      .def(
          "add", &LiveScheduler::add, "prompt"_a, "output"_a, nb::kw_only(), "width"_a = 1, "key"_a,
          R"(A request of `width` sequences that share its prompt arrives; its row, or None when it could never fit.

Waiting requests are served by smaller `key` first.)")
      .def("remove", &LiveScheduler::remove, "row"_a,
           "The request goes now, wherever it is: cancelled, or ended before its last token.")
      .def(
          "finish", [](LiveScheduler& live, int batch) { return rows_of(live.finish(batch)); }, "batch"_a = 0,
          "The batch has run an iteration: the rows that have all their tokens and leave.")
      .def(
          "advance",
          [](LiveScheduler& live, int batch) -> nb::typed<nb::tuple, Rows, Rows> {
            const Scheduler::Change& change = live.advance(batch);
            return nb::make_tuple(rows_of(change.preempted), rows_of(change.joined));
          },
          "batch"_a = 0,
          R"(The batch is about to run an iteration: (rows that had to make room, rows that joined).

Who made room waits again, and will join with the tokens it has made. Where the scheduler is `staged`, those
join for which ready() was called; `admitted` lists those that were given memory.)")
      .def("ready", &LiveScheduler::ready, "row"_a,
           "Staged: the KV of a row that was admitted is there. It joins its batch when that advances next.")
      .def(
          "join", [](LiveScheduler& live, int batch) { return rows_of(live.join(batch).joined); },
          "batch"_a = 0,
          R"(Staged: those that got ready since advance() join the iteration that it began, too.

All rows that have joined it.)")
      .def(
          "unjoin", &LiveScheduler::unjoin, "row"_a,
          R"(Staged: the iteration that a row joined was aborted, or its KV is lost: it waits for ready() again.

It keeps the memory that it was promised.)")
      .def_prop_ro(
          "admitted", [](const LiveScheduler& live) { return rows_of(live.admitted()); },
          nb::rv_policy::automatic,
          "Staged: the rows that the last advance() has promised memory to, whichever batch they will join.")
      .def("pool", &LiveScheduler::pool, "row"_a,
           "The pool that a row's KV is in, once it was admitted: the one that had most free tokens.")
      .def("batch", &LiveScheduler::batch, "row"_a,
           "The batch that a row is in or will join, once it was admitted.")
      .def("size", &LiveScheduler::size, "batch"_a = 0, "How many sequences the batch has.")
      .def("kv_tokens", &LiveScheduler::kv, "batch"_a = 0,
           "KV tokens the batch has, a prompt that sequences share counted once.")
      .def("check_integrity", &LiveScheduler::check_integrity,
           "Recount everything; raise RuntimeError naming the first thing found wrong.")
      .def_prop_ro("waiting", &LiveScheduler::waiting, "How many requests wait.")
      .def_prop_ro("running", &LiveScheduler::running, "How many sequences run.")
      .def_prop_ro("free_tokens", &LiveScheduler::free_tokens,
                   "KV tokens that no request has been promised.");
}

}  // namespace lamina
