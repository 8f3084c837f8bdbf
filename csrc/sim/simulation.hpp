#pragma once

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/prompt_scheduler.hpp"
#include "sim/costs.hpp"
#include "sim/handover.hpp"
#include "sim/site.hpp"

namespace lamina::sim {

// What iterations run on: it follows the requests, and says what each iteration is to the workers.
template <typename H, typename S>
concept Hardware = requires(H hardware, const H same, const S& scheduler,
                            const std::vector<Scheduler::Index>& requests, const typename S::Change& change) {
  { same.serving() } -> std::convertible_to<const ServingCosts&>;
  // These requests have all their tokens.
  hardware.leave(requests);
  // The batch goes on as the scheduler says, after this change; nothing active if it is empty.
  { hardware.load(scheduler, 0, change) } -> std::same_as<Load>;
  // Its costs, where a batch that goes on as it is takes longer by its attention alone.
  { same.steady() } -> std::same_as<const Costs*>;
  // What the hardware kept of its iterations goes into the result.
  hardware.take(std::declval<Result&>());
  // Throws std::logic_error naming the first thing found wrong.
  same.check_integrity();
};

// How a deployment takes part in a replay.
struct Part {
  const Workload& workload;
  RequestRows& requests;  // of the workload, to be filled in
  Arrivals arrivals;
  Mode mode = Mode::kOpen;
  std::int64_t concurrency = 0;
  int first_batch = 0;  // its batches are numbered from here
  Recording recording{};
  bool keep_iterations = true;
  bool prefill = false;      // it only prefills: one token of each request, whose KV stays until release()
  bool first_tokens = true;  // whether the token that it makes counts as the request's first
  std::optional<Handover> handover{};  // how KV comes from there
};

// A deployment, boundary by boundary, as docs/simulator.md defines it: the same order of events on any
// hardware, and whether prompts are computed too (PromptScheduler) or not.
template <typename S, Hardware<S> H>
class Simulation final : public Site {
public:
  template <typename MakeScheduler, typename MakeHardware>
  Simulation(Part part, Rotation rotation, int layers, MakeScheduler scheduler, MakeHardware hardware)
      : part_(std::move(part)),
        layers_(layers),
        scheduler_(scheduler(part_.arrivals)),
        hardware_(hardware(part_.arrivals)),
        pipeline_(rotation, layers),
        loads_(static_cast<std::size_t>(rotation.batches)),
        ready_(loads_.size()),
        finished_(loads_.size()),
        pending_(loads_.size()),
        sent_(static_cast<std::size_t>(part_.concurrency)) {
    if (!part_.keep_iterations) {
      result_.tally.emplace();
      last_end_.resize(loads_.size());
    } else if constexpr (kPrompts) {
      result_.prompt_tokens.emplace();
    }
    pipeline_.record(part_.recording.from, part_.recording.to);
  }

  void deliver(Index row, Ticks at) override { deliver(row, at, part_.workload.requests.output[row]); }

  // The same for a request of `output` tokens whose KV is complete on the prefill devices at time `whole`.
  void deliver(Index row, Ticks at, std::int32_t output, Ticks whole = 0) {
    if (part_.arrivals.add(row, at, output)) scheduler_.rebind(part_.arrivals.table());
    if (part_.handover) whole_.push_back(whole);
  }
  // Whether it could ever be served.
  bool fits(Index row) const { return scheduler_.fits(part_.workload.requests, row); }

  Ticks next() const override {
    if (turn_ > 0) return loads_[turn_].active ? std::max(now_, finished_[turn_]) : now_;
    if (const Ticks first = first_end(); first != kNever) {
      const Ticks woken = std::max(now_, first);
      return loads_[0].active ? std::max(woken, finished_[0]) : woken;
    }
    // Admitted to a batch whose turn had passed: it joins in the next cycle, which begins at once.
    if (part_.handover ? to_join_ > 0 : scheduler_.running() > 0) return now_;
    Ticks soonest = coming();
    if (part_.handover) soonest = std::min(soonest, part_.handover->next());
    if (scheduler_.waiting() > 0) {
      for (const auto& [request, at] : releases_) soonest = std::min(soonest, at);
    }
    return soonest == kNever ? kNever : std::max(now_, soonest);
  }

  bool advance(Ticks before, std::int64_t most) override {
    for (; most > 0; --most) {
      const Ticks at = next();
      if (at >= before) return true;
      if (turn_ == 0) {
        now_ = at;
        if (coast(before)) continue;
      }
      serve();
    }
    return false;
  }

  Ticks next_end() const override {
    // A request that was delivered changes how long iterations take.
    const std::int64_t boundaries = turn_ == 0 && next_ == part_.arrivals.size() ? steady(kFarthest) : 0;
    if (boundaries == 0) return next();
    // Iteration time is a convex function of attention time, and attention time is a concave function of the
    // iteration's number, up to 2 ticks of rounding. So n iterations take at least n times one whose
    // attention is the mean of the first and the last.
    const std::size_t j = first_active();
    const std::int64_t size = scheduler_.size(static_cast<int>(j));
    const std::int64_t kv = scheduler_.kv(static_cast<int>(j));
    Load load = steady_load(size);
    // Measured attention grows as it does: it may take nothing.
    const Costs& costs = *hardware_.steady();
    if (!costs.measured) {
      const Ticks first = formula_of(costs, size, kv + size);
      load.attention += (first + formula_of(costs, size, kv + size * boundaries)) / 2 - 2;
    }
    return finished_[j] + boundaries * pipeline_.alone(load);
  }

  // The next boundary alone.
  void step() {
    if (turn_ == 0) now_ = next();
    serve();
  }

  Result take() override {
    result_.replica_busy.assign(pipeline_.replica_busy().begin(), pipeline_.replica_busy().end());
    result_.attention_busy = pipeline_.attention_busy();
    result_.end = now_;
    if (!queue_was_empty_) result_.queue_empty_at = now_;
    result_.kv_capacity_tokens = scheduler_.capacity();
    result_.timeline = pipeline_.recorded();
    for (Stretch& stretch : result_.timeline) stretch.batch += part_.first_batch;
    hardware_.take(result_);
    return std::move(result_);
  }

  void check_integrity() const override {
    scheduler_.check_integrity();
    hardware_.check_integrity();
  }

  // Of devices that compute prompts: whose last chunk runs, and from when to when, cleared as departed() is;
  // and KV that may go.
  struct Computed {
    Index request;
    Ticks from, to;
  };
  std::vector<Computed>& computed() { return computed_; }
  void release(Index request, Ticks at) { releases_.emplace_back(request, at); }
  // Of devices that get KV: whose has come; cleared likewise.
  std::vector<Index>& received() { return received_; }
  Index row_of(Index request) const { return part_.arrivals.row(request); }
  // From when a token is made to when its client has it.
  Ticks out() const { return hardware_.serving().out; }
  Ticks now() const { return now_; }

private:
  static constexpr bool kPrompts = std::is_same_v<S, PromptScheduler>;
  // As far as is looked ahead at once.
  static constexpr std::int64_t kFarthest = 1 << 12;

  std::size_t first_active() const {
    std::size_t j = 0;
    while (j < loads_.size() && !loads_[j].active) ++j;
    return j;
  }

  // Of the iterations under way; idle batches wait for it.
  Ticks first_end() const {
    Ticks first = kNever;
    for (std::size_t j = 0; j < loads_.size(); ++j) {
      if (loads_[j].active) first = std::min(first, finished_[j]);
    }
    return first;
  }

  // The boundary of the batch whose turn it is; after the last one's the cycle.
  void serve() {
    boundary(static_cast<int>(turn_));
    if (++turn_ < loads_.size()) return;
    turn_ = 0;
    if (first_active() == loads_.size()) return;
    pipeline_.run(loads_, ready_, finished_);
    for (std::size_t j = 0; j < loads_.size(); ++j) {
      if (!loads_[j].active) continue;
      if constexpr (kPrompts) launch(j);
      row(j);
      if (!part_.prefill) continue;
      for (const Index request : pending_[j].first)
        computed_.push_back({request, pending_[j].start, finished_[j]});
    }
  }

  // An iteration with prompts that is in no graph ends when the host has launched it; the host is an
  // iteration ahead if it works asynchronously.
  void launch(std::size_t j) {
    const ServingCosts& costs = hardware_.serving();
    const PromptScheduler::Step& step = scheduler_.step(static_cast<int>(j));
    if (costs.launch == 0 || step.chunks.empty() || step.rows <= costs.graph_rows) return;
    Pending& pending = pending_[j];
    pending.launched = std::max(pending.launched, pending.launching) + costs.launch;
    const Ticks later = std::max<Ticks>(0, pending.launched - finished_[j]);
    finished_[j] += later;
    pending.host += later;
  }

  // For how many boundaries, from the next one on, the one batch that runs goes on as it is.
  std::int64_t steady(std::int64_t most) const {
    const std::size_t j = first_active();
    if (j == loads_.size() || hardware_.steady() == nullptr || !pending_[j].first.empty() ||
        !pending_[j].resumed.empty())
      return 0;
    if (part_.handover && !part_.handover->idle()) return 0;
    if (!pipeline_.alone_from(finished_[j], loads_[j])) return 0;
    return scheduler_.steady(static_cast<int>(j), most);
  }

  // Of such iterations, but for attention of their KV tokens.
  Load steady_load(std::int64_t size) const {
    const Costs& costs = *hardware_.steady();
    const auto of = static_cast<std::size_t>(size);
    Load load = costs.loads[of];
    if (!costs.prompts.head.empty()) load.last_slice += costs.prompts.head[of];
    return load;
  }

  // Whether it went on over some boundaries at once, which concern no other batch and no request that comes.
  bool coast(Ticks before) {
    const std::size_t j = first_active();
    if (j == loads_.size()) return false;
    before = std::min(before, coming());
    Ticks start = pending_[j].start, until = finished_[j];
    if (until >= before) return false;
    // No farther than about where it has to stop: looking ahead costs as much as going on.
    const std::int64_t boundaries =
        steady(1 + std::min(kFarthest, (before - until) / std::max<Ticks>(1, until - start)));
    if (boundaries == 0) return false;
    const int batch = static_cast<int>(j);
    const Costs& costs = *hardware_.steady();
    const std::int64_t size = scheduler_.size(batch);
    Load load = steady_load(size);
    const Ticks of_rows = load.attention;
    Attended all = scheduler_.attended(batch, 0);
    std::int64_t done = 0;
    Ticks attention = 0;
    const auto each_of = [&](auto keep) {
      for (; done < boundaries && until < before; ++done) {
        const Ticks waited = host_of(costs.serving, size, costs.serving.host_async ? until - start : 0);
        start = until;
        all.kv += size;
        ++all.least;
        ++all.most;
        load.attention = of_rows + attention_of(costs, all);
        attention += load.attention + load.combine;
        until = start + waited + pipeline_.alone(load);
        keep(waited);
      }
    };
    if (result_.tally) {
      Spent spent;
      each_of([&](Ticks waited) {
        result_.tally->gap(until - start, size);
        spend(spent, load, until - start, waited);
      });
      fold(spent, static_cast<std::int32_t>(size));
      last_end_[j] = until;
    } else {
      const std::int64_t first = scheduler_.iterations(batch) + 1;
      each_of([&](Ticks waited) {
        row(j, load,
            {first + done, start, until - start, waited, all.kv, static_cast<std::int32_t>(size), 0});
      });
    }
    loads_[j] = load;
    pending_[j].start = now_ = start;
    finished_[j] = until;
    scheduler_.skip(batch, done);
    pipeline_.skip(batch, done, load, attention, until);
    result_.peak_kv_tokens = std::max(result_.peak_kv_tokens, scheduler_.used());
    return true;
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
    // An iteration that was scheduled while the last one ran has no request that came since.
    arrive(kPrompts && prepared > 0 ? pending_[j].start : now_);
    receive();
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
    pending.launching = prepared > 0 ? pending.start : now_;
    pending.start = now_;
    const std::int64_t sequences = scheduler_.sequences(batch);
    pending.host = load.active ? host_of(hardware_.serving(), sequences, prepared) : 0;
    pending.joined = static_cast<std::int32_t>(change.joined.size());
    ready_[j] = now_ + pending.host;
  }

  // When the next request has left its client; closed: when one that had its place was there.
  Ticks sent() const {
    if (next_ >= part_.arrivals.size()) return kNever;
    if (part_.mode != Mode::kClosed) return part_.arrivals.at(next_);
    return next_ < sent_ ? part_.requests.arrival[part_.arrivals.row(static_cast<Index>(next_))] : kNever;
  }

  // When it is in the queue. KV that is handed over has passed a front end before.
  Ticks coming() const {
    const Ticks at = sent();
    if (at == kNever || part_.handover) return at;
    const ServingCosts& costs = hardware_.serving();
    return std::max(front_end_free_, at) + costs.request_serial + costs.request_in;
  }

  // Requests that are in the queue by then.
  void arrive(Ticks by) {
    for (Ticks at = coming(); at <= by; at = coming()) {
      front_end_free_ = at - hardware_.serving().request_in;
      const auto request = static_cast<Index>(next_++);
      if (scheduler_.enqueue(request) == RequestState::kWaiting) continue;
      departed_.push_back(part_.arrivals.row(request));
      send_next();
    }
  }

  // Closed: a client has its answer, and sends its next request.
  void send_next() {
    if (part_.mode != Mode::kClosed || sent_ >= part_.arrivals.size()) return;
    part_.requests.arrival[part_.arrivals.row(static_cast<Index>(sent_++))] = now_ + out();
  }

  // KV that has come, or may go.
  void receive() {
    if constexpr (kPrompts) {
      std::erase_if(releases_, [&](const auto& each) {
        if (each.second > now_) return false;
        scheduler_.release(each.first);
        return true;
      });
    } else if (part_.handover && !part_.handover->idle()) {
      for (const Index request : part_.handover->received(now_, busy_share())) {
        scheduler_.ready(request);
        received_.push_back(request);
        ++to_join_;
      }
    }
  }

  // Of the attention workers, with the iterations that run: KV is read in their free time.
  double busy_share() const {
    double share = 0;
    for (std::size_t j = 0; j < loads_.size(); ++j) {
      const Load& load = loads_[j];
      if (!load.active || finished_[j] <= pending_[j].start) continue;
      share += static_cast<double>(layers_ * (load.attention + load.combine)) /
               static_cast<double>(finished_[j] - pending_[j].start);
    }
    return share;
  }

  void first_tokens(std::size_t j) {
    for (const Index request : pending_[j].first) {
      const Index row = part_.arrivals.row(request);
      Ticks& first = part_.requests.first_token[row];
      const Ticks at = finished_[j] + out();
      if (part_.first_tokens) {
        first = at;
      } else if (!part_.prefill) {
        const Ticks gap = at - first;
        if (result_.tally) {
          result_.tally->gap(gap, 1);
        } else {
          result_.gaps.push_back({row, at, gap});
        }
      }
    }
    for (const Ticks lost : pending_[j].resumed) result_.tally->gap(finished_[j] - lost, 1);
    pending_[j].resumed.clear();
    pending_[j].first.clear();
  }

  void finish(int batch) {
    RequestRows& r = part_.requests;
    const std::vector<Index>& done = scheduler_.finish(batch);
    const Ticks at = finished_[static_cast<std::size_t>(batch)] + out();
    hardware_.leave(done);
    for (const Index request : done) {
      const Index row = part_.arrivals.row(request);
      send_next();
      if (part_.prefill) continue;
      r.finished[row] = at;
      r.last_iteration[row] = scheduler_.iterations(batch) - 1;
      if (r.preemptions[row] > 0) end_stint(request, batch, r.last_iteration[row]);
      departed_.push_back(row);
    }
  }

  void note(int batch, const typename S::Change& change) {
    RequestRows& r = part_.requests;
    const auto j = static_cast<std::size_t>(batch);
    const std::int64_t iteration = scheduler_.iterations(batch);
    for (const Index request : change.preempted) {
      const Index row = part_.arrivals.row(request);
      if (r.preemptions[row]++ == 0) stint_start(request) = r.first_iteration[row];
      end_stint(request, batch, iteration - 1);
      if (result_.tally) lost_at_[request] = finished_[j];
    }
    if constexpr (kPrompts) {
      // It had made no token since it was admitted, so no stretch of them ends.
      for (const Index request : change.sent_back) ++r.preemptions[part_.arrivals.row(request)];
      for (const Index request : change.admitted) {
        const Index row = part_.arrivals.row(request);
        if (r.admitted[row] == kNotYet) r.admitted[row] = now_;
        if (!part_.prefill) r.batch[row] = part_.first_batch + batch;
      }
    } else if (part_.handover) {
      for (const Index request : change.admitted) {
        // What was lost here is computed anew here.
        if (scheduler_.produced(request) > 0) {
          scheduler_.ready(request);
          ++to_join_;
        } else {
          part_.handover->begin(request, part_.arrivals.table().prompt[request], now_, whole_[request]);
        }
      }
      to_join_ -= static_cast<std::int64_t>(change.joined.size());
    }
    for (const Index request : change.joined) {
      const Index row = part_.arrivals.row(request);
      if (part_.prefill) {
        pending_[j].first.push_back(request);
        continue;
      }
      r.batch[row] = part_.first_batch + batch;
      if (r.preemptions[row] > 0) stint_start(request) = iteration;
      if (const auto lost = result_.tally ? lost_at_.find(request) : lost_at_.end(); lost != lost_at_.end()) {
        pending_[j].resumed.push_back(lost->second);
        lost_at_.erase(lost);
      }
      if (r.first_iteration[row] != kNotYet) continue;
      if (r.admitted[row] == kNotYet) r.admitted[row] = now_;
      r.first_iteration[row] = iteration;
      pending_[j].first.push_back(request);
    }
  }

  std::int64_t& stint_start(Index request) {
    if (request >= stint_start_.size()) stint_start_.resize(part_.arrivals.size());
    return stint_start_[request];
  }

  void end_stint(Index request, int batch, std::int64_t last) {
    result_.stints.push_back(
        {part_.arrivals.row(request), part_.first_batch + batch, stint_start(request), last});
  }

  void row(std::size_t j) {
    const int batch = static_cast<int>(j);
    const Pending& pending = pending_[j];
    const Ticks duration = finished_[j] - pending.start;
    const auto size = static_cast<std::int32_t>(scheduler_.size(batch));
    if (result_.tally) {
      tally(j, duration, size);
    } else {
      row(j, loads_[j],
          {scheduler_.iterations(batch), pending.start, duration, pending.host, scheduler_.kv(batch), size,
           pending.joined});
    }
    if constexpr (kPrompts) {
      const PromptScheduler::Step& step = scheduler_.step(batch);
      const std::int64_t tokens = step.rows - step.decoding;
      if (result_.tally) {
        result_.tally->prompt_tokens += tokens;
      } else {
        result_.prompt_tokens->back() = static_cast<std::int32_t>(tokens);
      }
    }
  }

  // State of a row besides its batch and load.
  struct Iteration {
    std::int64_t number;
    Ticks start, duration, host;
    std::int64_t kv;
    std::int32_t size, joined;
  };
  void row(std::size_t j, const Load& load, const Iteration& of) {
    IterationRows& rows = result_.iterations;
    const std::size_t i = rows.add();
    rows.batch[i] = part_.first_batch + static_cast<std::int32_t>(j);
    rows.iteration[i] = of.number;
    rows.start[i] = of.start;
    rows.duration[i] = of.duration;
    rows.size[i] = of.size;
    rows.joined[i] = of.joined;
    rows.kv_tokens[i] = of.kv;
    rows.model[i] = load.first_slice + (layers_ - 1) * load.mid_slice + load.last_slice;
    rows.attention[i] = layers_ * (load.attention + load.combine);
    rows.network[i] = layers_ * (load.q_transfer + load.out_transfer);
    rows.host[i] = of.host;
    if constexpr (kPrompts) result_.prompt_tokens->push_back(0);
  }

  void tally(std::size_t j, Ticks duration, std::int32_t size) {
    const Ticks end = pending_[j].start + duration;
    if (size > pending_[j].joined) result_.tally->gap(end - last_end_[j], size - pending_[j].joined);
    last_end_[j] = end;
    Spent spent;
    spend(spent, loads_[j], duration, pending_[j].host);
    fold(spent, size);
  }

  // Of some iterations of one size, which is multiplied once: sums of products need more than 64 bits.
  struct Spent {
    std::int64_t iterations = 0;
    Ticks duration = 0, model = 0, attention = 0, network = 0, host = 0, waiting = 0, overlapped = 0;
  };

  void spend(Spent& spent, const Load& load, Ticks duration, Ticks host) const {
    const Ticks model = load.first_slice + (layers_ - 1) * load.mid_slice + load.last_slice;
    const Ticks attention = layers_ * (load.attention + load.combine);
    const Ticks network = layers_ * (load.q_transfer + load.out_transfer);
    const Ticks left = duration - model - attention - network - host;
    ++spent.iterations;
    spent.duration += duration;
    spent.model += model;
    spent.attention += attention;
    spent.network += network;
    spent.host += host;
    spent.waiting += std::max<Ticks>(0, left);
    spent.overlapped += std::max<Ticks>(0, -left);
  }

  void fold(const Spent& spent, std::int32_t size) {
    Tally& sums = *result_.tally;
    const auto of = [&](Ticks ticks) {
      return static_cast<Tally::Sum>(ticks) * static_cast<Tally::Sum>(size);
    };
    sums.iterations += spent.iterations;
    sums.tokens += spent.iterations * size;
    sums.duration += of(spent.duration);
    sums.model += of(spent.model);
    sums.attention += of(spent.attention);
    sums.network += of(spent.network);
    sums.host += of(spent.host);
    sums.waiting += of(spent.waiting);
    sums.overlapped += of(spent.overlapped);
  }

  struct Pending {
    Ticks start = 0;
    Ticks host = 0;
    Ticks launching = 0, launched = 0;  // from when, at least, and until when it is launched
    std::int32_t joined = 0;
    std::vector<Index> first;    // their first token comes with this iteration
    std::vector<Ticks> resumed;  // of a tally: when preempted requests had their last token
  };

  Part part_;
  const int layers_;
  S scheduler_;
  H hardware_;
  Pipeline pipeline_;
  std::vector<Load> loads_;
  std::vector<Ticks> ready_, finished_;
  std::vector<Pending> pending_;
  std::vector<std::int64_t> stint_start_;
  std::vector<Computed> computed_;
  std::vector<std::pair<Index, Ticks>> releases_;
  std::vector<Index> received_;
  std::vector<Ticks> whole_;  // when the prompt of each is
  std::int64_t to_join_ = 0;  // whose KV has come

  // Of a tally: when each batch's last iteration ended, and when preempted requests had their last token.
  std::vector<Ticks> last_end_;
  std::unordered_map<Index, Ticks> lost_at_;

  Ticks now_ = 0;
  std::size_t turn_ = 0;  // the batch whose boundary is next
  std::size_t next_ = 0;
  std::size_t sent_;  // closed: so many requests have left their clients
  Ticks front_end_free_ = 0;
  bool queue_was_empty_ = false;
  Result result_;
};

}  // namespace lamina::sim
