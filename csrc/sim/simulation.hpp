#pragma once

#include <algorithm>
#include <concepts>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/prompt_scheduler.hpp"
#include "sim/costs.hpp"
#include "sim/simulator.hpp"

namespace lamina::sim {

inline constexpr Ticks kNever = -1;

// What iterations run on: it follows who is there, and says what each iteration is to the workers.
template <typename H, typename S>
concept Hardware = requires(H hardware, const H same, const S& scheduler,
                            const std::vector<Scheduler::Index>& requests, const typename S::Change& change) {
  // Between two looks at the progress callback: often enough for Ctrl-C, seldom enough to cost nothing.
  { H::kCyclesPerLook } -> std::convertible_to<std::int64_t>;
  { same.serving() } -> std::convertible_to<const ServingCosts&>;
  // These requests have all their tokens.
  hardware.leave(requests);
  // The batch goes on as the scheduler says, after this change; nothing active if nobody is in it.
  { hardware.load(scheduler, 0, change) } -> std::same_as<Load>;
  // Throws std::logic_error naming the first thing found wrong.
  same.check_integrity();
};

// A replay, cycle by cycle, as simulate() describes it: the same order of events on any hardware, and whether
// prompts are computed too (PromptScheduler) or not.
template <typename S, Hardware<S> H>
class Simulation {
public:
  Simulation(const Workload& workload, S scheduler, Rotation rotation, int layers, H& hardware)
      : workload_(workload),
        hardware_(hardware),
        layers_(layers),
        scheduler_(std::move(scheduler)),
        pipeline_(rotation, layers),
        loads_(static_cast<std::size_t>(rotation.batches)),
        ready_(loads_.size()),
        finished_(loads_.size()),
        pending_(loads_.size()) {
    const std::size_t rows = workload.arrival.size();
    RequestRows& r = result_.requests;
    r.arrival.assign(workload.arrival.begin(), workload.arrival.end());
    if (workload.mode != Mode::kOpen) std::fill(r.arrival.begin(), r.arrival.end(), Ticks{0});
    r.admitted.assign(rows, kNever);
    r.first_token.assign(rows, kNever);
    r.finished.assign(rows, kNever);
    r.first_iteration.assign(rows, kNever);
    r.last_iteration.assign(rows, kNever);
    r.batch.assign(rows, -1);
    r.preemptions.assign(rows, 0);
    if constexpr (kPrompts) result_.prompt_tokens.emplace();
  }

  Result run(Recording recording, const Progress& progress, bool check) {
    pipeline_.record(recording.from, recording.to);
    for (std::int64_t cycle = 0; step(); ++cycle) {
      if (check) {
        scheduler_.check_integrity();
        hardware_.check_integrity();
      }
      if (progress && cycle % H::kCyclesPerLook == 0) progress(done_);
    }
    result_.replica_busy.assign(pipeline_.replica_busy().begin(), pipeline_.replica_busy().end());
    result_.attention_busy = pipeline_.attention_busy();
    result_.end = now_;
    if (!queue_was_empty_) result_.queue_empty_at = now_;
    result_.kv_capacity_tokens = scheduler_.capacity();
    result_.timeline = pipeline_.recorded();
    return std::move(result_);
  }

private:
  static constexpr bool kPrompts = std::is_same_v<S, PromptScheduler>;

  bool step() {
    wake();
    bool active = false;
    for (std::size_t j = 0; j < loads_.size(); ++j) {
      boundary(static_cast<int>(j));
      active |= loads_[j].active;
    }
    if (active) {
      pipeline_.run(loads_, ready_, finished_);
      for (std::size_t j = 0; j < loads_.size(); ++j) {
        if (loads_[j].active) row(j);
      }
      return true;
    }
    // Admitted to a batch whose turn had passed: it joins in the next cycle, which begins at once.
    if (scheduler_.running() > 0) return true;
    if (next_ == workload_.arrival.size()) return false;
    now_ = std::max(now_, result_.requests.arrival[next_]);
    return true;
  }

  // The scheduler's clock stands at the boundary it serves; idle batches wait for the first one.
  void wake() {
    Ticks first = std::numeric_limits<Ticks>::max();
    for (std::size_t j = 0; j < loads_.size(); ++j) {
      if (loads_[j].active) first = std::min(first, finished_[j]);
    }
    if (first != std::numeric_limits<Ticks>::max()) now_ = std::max(now_, first);
  }

  void boundary(int batch) {
    const auto j = static_cast<std::size_t>(batch);
    Ticks prepared = 0;  // host time that passed behind the batch's last iteration
    if (loads_[j].active) {
      if (hardware_.serving().host_async) prepared = finished_[j] - pending_[j].start;
      now_ = std::max(now_, finished_[j]);
      first_tokens(j);
      finish(batch);
    }
    // An iteration that was scheduled while the last one ran has nobody who came since.
    arrive(kPrompts && prepared > 0 ? pending_[j].start : now_);
    const typename S::Change& change = scheduler_.advance(batch);
    note(batch, change);
    if (!queue_was_empty_ && scheduler_.waiting() == 0 && next_ > 0) {
      queue_was_empty_ = true;
      result_.queue_empty_at = now_;
    }
    result_.peak_kv_tokens = std::max(result_.peak_kv_tokens, scheduler_.used());
    Load& load = loads_[j];
    load = hardware_.load(scheduler_, batch, change);
    if constexpr (!kPrompts) {
      load.first_slice +=
          to_ticks(static_cast<double>(change.recomputed_tokens) * hardware_.serving().recompute_per_token);
    }
    Pending& pending = pending_[j];
    pending.start = now_;
    const std::int64_t sequences = scheduler_.sequences(batch);
    pending.host = load.active ? std::max<Ticks>(0, host_of(hardware_.serving(), sequences) - prepared) : 0;
    pending.joined = static_cast<std::int32_t>(change.joined.size());
    ready_[j] = now_ + pending.host;
  }

  // Requests that have arrived by then; closed: as many as make the concurrency full.
  void arrive(Ticks by) {
    const std::size_t rows = workload_.arrival.size();
    while (next_ < rows) {
      if (workload_.mode == Mode::kClosed) {
        if (in_system_ >= workload_.concurrency) return;
        result_.requests.arrival[next_] = now_;
      } else if (result_.requests.arrival[next_] > by) {
        return;
      }
      if (scheduler_.enqueue(static_cast<Scheduler::Index>(next_)) == RequestState::kWaiting) ++in_system_;
      ++next_;
    }
  }

  void first_tokens(std::size_t j) {
    for (const Scheduler::Index request : pending_[j].first)
      result_.requests.first_token[request] = finished_[j];
    pending_[j].first.clear();
  }

  void finish(int batch) {
    RequestRows& r = result_.requests;
    const std::vector<Scheduler::Index>& done = scheduler_.finish(batch);
    hardware_.leave(done);
    for (const Scheduler::Index request : done) {
      r.finished[request] = finished_[static_cast<std::size_t>(batch)];
      r.last_iteration[request] = scheduler_.iterations(batch) - 1;
      if (r.preemptions[request] > 0) end_stint(request, batch, r.last_iteration[request]);
      --in_system_;
      ++done_;
    }
  }

  void note(int batch, const typename S::Change& change) {
    RequestRows& r = result_.requests;
    const auto j = static_cast<std::size_t>(batch);
    const std::int64_t iteration = scheduler_.iterations(batch);
    for (const Scheduler::Index request : change.preempted) {
      if (r.preemptions[request]++ == 0) stint_start(request) = r.first_iteration[request];
      end_stint(request, batch, iteration - 1);
    }
    if constexpr (kPrompts) {
      // It had made no token since it was admitted, so no stretch of them ends.
      for (const Scheduler::Index request : change.sent_back) ++r.preemptions[request];
      for (const Scheduler::Index request : change.admitted) {
        if (r.admitted[request] == kNever) r.admitted[request] = now_;
        r.batch[request] = batch;
      }
    }
    for (const Scheduler::Index request : change.joined) {
      r.batch[request] = batch;
      if (r.preemptions[request] > 0) stint_start(request) = iteration;
      if (r.first_iteration[request] != kNever) continue;
      if constexpr (!kPrompts) r.admitted[request] = now_;
      r.first_iteration[request] = iteration;
      pending_[j].first.push_back(request);
    }
  }

  std::int64_t& stint_start(Scheduler::Index request) {
    if (stint_start_.empty()) stint_start_.resize(workload_.arrival.size());
    return stint_start_[request];
  }

  void end_stint(Scheduler::Index request, int batch, std::int64_t last) {
    result_.stints.push_back({request, batch, stint_start(request), last});
  }

  void row(std::size_t j) {
    const Load& load = loads_[j];
    const Pending& pending = pending_[j];
    const int batch = static_cast<int>(j);
    IterationRows& rows = result_.iterations;
    const std::size_t i = rows.add();
    rows.batch[i] = batch;
    rows.iteration[i] = scheduler_.iterations(batch);
    rows.start[i] = pending.start;
    rows.duration[i] = finished_[j] - pending.start;
    rows.size[i] = static_cast<std::int32_t>(scheduler_.size(batch));
    rows.joined[i] = pending.joined;
    rows.kv_tokens[i] = scheduler_.kv(batch);
    rows.model[i] = load.first_slice + (layers_ - 1) * load.mid_slice + load.last_slice;
    rows.attention[i] = layers_ * (load.attention + load.combine);
    rows.network[i] = layers_ * (load.q_transfer + load.out_transfer);
    rows.host[i] = pending.host;
    if constexpr (kPrompts) {
      const PromptScheduler::Step& step = scheduler_.step(batch);
      result_.prompt_tokens->push_back(static_cast<std::int32_t>(step.rows - step.decoding));
    }
  }

  struct Pending {
    Ticks start = 0;
    Ticks host = 0;
    std::int32_t joined = 0;
    std::vector<Scheduler::Index> first;  // their first token comes with this iteration
  };

  const Workload& workload_;
  H& hardware_;
  const int layers_;
  S scheduler_;
  Pipeline pipeline_;
  std::vector<Load> loads_;
  std::vector<Ticks> ready_, finished_;
  std::vector<Pending> pending_;
  std::vector<std::int64_t> stint_start_;

  Ticks now_ = 0;
  std::size_t next_ = 0;
  std::int64_t in_system_ = 0;
  std::int64_t done_ = 0;
  bool queue_was_empty_ = false;
  Result result_;
};

}  // namespace lamina::sim
