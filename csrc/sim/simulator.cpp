#include "sim/simulator.hpp"

#include <algorithm>
#include <atomic>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include "sim/board_hardware.hpp"
#include "sim/cost_tables.hpp"
#include "sim/earliest.hpp"
#include "sim/merge.hpp"
#include "sim/pooled.hpp"
#include "sim/simulation.hpp"

namespace lamina::sim {

namespace {

using Index = Site::Index;

// Boundaries between two looks at the progress callback: often enough for Ctrl-C, seldom enough to cost
// nothing.
constexpr std::int64_t kLook = 1 << 10;

// What all deployments of a replay have in common.
struct Replay {
  const Workload& workload;
  const Fleet& fleet;
  const Scheduler::Priority& priority;
  Recording recording;
  bool check;
  RequestRows requests;
  std::vector<int> first_batch;

  int copies() const { return static_cast<int>(fleet.instances.size()); }
};

RequestRows rows_of(const Workload& workload) {
  RequestRows r;
  const std::size_t rows = workload.arrival.size();
  r.arrival.assign(workload.arrival.begin(), workload.arrival.end());
  if (workload.mode != Mode::kOpen) std::fill(r.arrival.begin(), r.arrival.end(), Ticks{0});
  r.admitted.assign(rows, kNotYet);
  r.first_token.assign(rows, kNotYet);
  r.finished.assign(rows, kNotYet);
  r.first_iteration.assign(rows, kNotYet);
  r.last_iteration.assign(rows, kNotYet);
  r.batch.assign(rows, -1);
  r.preemptions.assign(rows, 0);
  return r;
}

// The queue's key of a deployment's request, where there is a policy.
Scheduler::Priority priority_of(const Replay& replay, const Arrivals& arrivals) {
  if (!replay.priority) return {};
  return [&](Index request) { return replay.priority(arrivals.row(request)); };
}

template <typename S, typename H, typename MakeScheduler, typename MakeHardware>
auto simulation(Part part, Rotation rotation, int layers, MakeScheduler scheduler, MakeHardware hardware) {
  return std::make_unique<Simulation<S, H>>(std::move(part), rotation, layers, scheduler, hardware);
}

const ServingCosts& serving_of(const Deployed& its) {
  return its.board ? its.board->serving : its.costs->serving;
}

auto decoding(Replay& replay, const Deployed& its, SchedulerLimits limits, Part part) {
  limits.lengths = its.costs->measured.has_value();
  return simulation<Scheduler, CostTables>(
      std::move(part), its.rotation, its.layers,
      [&](const Arrivals& arrivals) {
        return Scheduler(arrivals.table(), limits, priority_of(replay, arrivals));
      },
      [&](const Arrivals&) { return CostTables(*its.costs); });
}

auto with_prompts(Replay& replay, SchedulerLimits limits, PromptLimits prompts, const Costs& costs,
                  Rotation rotation, int layers, Part part) {
  prompts.lags = costs.serving.host_async;
  limits.lengths = costs.measured.has_value();
  return simulation<PromptScheduler, CostTables>(
      std::move(part), rotation, layers,
      [&](const Arrivals& arrivals) {
        return PromptScheduler(arrivals.table(), limits, prompts, priority_of(replay, arrivals));
      },
      [&](const Arrivals&) { return CostTables(costs); });
}

std::unique_ptr<Site> pooled(Replay& replay, const Deployed& its, Part part) {
  const PromptPool& pool = *its.pool;
  std::vector<std::unique_ptr<Pooled::Engine>> engines;
  for (int i = 0; i < pool.engines; ++i) {
    Part engine{replay.workload, replay.requests, Arrivals(replay.workload, its.prefix_sharing)};
    engine.prefill = true;
    engine.first_tokens = pool.pulled;
    engines.push_back(with_prompts(replay, pool.limits, {pool.budget, false, true}, *pool.costs, Rotation{},
                                   pool.layers, std::move(engine)));
  }
  SchedulerLimits limits = its.limits;
  limits.staged = true;
  part.first_tokens = !pool.pulled;
  part.handover.emplace(pool.link, its.layers, pool.pulled);
  return std::make_unique<Pooled>(std::move(engines), decoding(replay, its, limits, std::move(part)),
                                  replay.workload, replay.requests, pool.pulled);
}

// A deployment of the fleet, with what will be sent there or with all that it gets.
std::unique_ptr<Site> site(Replay& replay, int instance, Arrivals arrivals, Mode mode,
                           std::int64_t concurrency) {
  const Deployed& its = replay.fleet.instances[static_cast<std::size_t>(instance)];
  Part part{replay.workload, replay.requests, std::move(arrivals), mode, concurrency};
  part.first_batch = replay.first_batch[static_cast<std::size_t>(instance)];
  part.recording = replay.recording;
  part.keep_iterations = replay.fleet.keep_iterations;
  if (its.pool != nullptr) return pooled(replay, its, std::move(part));
  if (its.board != nullptr) {
    const BoardCosts& board = *its.board;
    return simulation<Scheduler, BoardHardware>(
        std::move(part), Rotation{}, board.shape.layers,
        [&](const Arrivals& all) { return Scheduler(all.table(), its.limits, priority_of(replay, all)); },
        [&](const Arrivals& all) { return BoardHardware(board, all.table(), its.limits.tokens_per_pool); });
  }
  if (its.prompt_budget > 0) {
    return with_prompts(replay, its.limits, {its.prompt_budget, false, false}, *its.costs, its.rotation,
                        its.layers, std::move(part));
  }
  return decoding(replay, its, its.limits, std::move(part));
}

// Counts ended requests for all threads. Only the first thread calls the progress callback; an exception from
// it stops all threads.
class EndedCount {
public:
  explicit EndedCount(const Progress& progress) : progress_(progress) {}

  void add(std::size_t ended, bool reports) {
    const std::int64_t all = done_ += static_cast<std::int64_t>(ended);
    if (stopped_) throw Stopped{};
    if (reports && progress_) progress_(all);
  }
  void stop() { stopped_ = true; }

  struct Stopped {};

private:
  const Progress& progress_;
  std::atomic<std::int64_t> done_ = 0;
  std::atomic<bool> stopped_ = false;
};

// On to a moment.
void advance(Site& site, Ticks before, bool check, EndedCount& ended_count, bool reports) {
  for (bool there = false; !there;) {
    there = site.advance(before, check ? 1 : kLook);
    if (check) site.check_integrity();
    ended_count.add(site.departed().size(), reports);
    site.departed().clear();
  }
}

// Calls `work` for each number below `count`, on that many threads; the caller's is one of them and reports.
template <typename Work>
void everywhere(int count, int threads, EndedCount& ended_count, Work work) {
  std::atomic<int> next = 0;
  std::exception_ptr failed;
  std::mutex failing;
  const auto run = [&](bool reports) {
    try {
      for (int i = next++; i < count; i = next++) work(i, reports);
    } catch (const EndedCount::Stopped&) {
      // Another thread failed.
    } catch (...) {
      const std::lock_guard lock(failing);
      if (!failed) failed = std::current_exception();
      ended_count.stop();
    }
  };
  {
    std::vector<std::jthread> others;
    for (int i = 1; i < std::min(threads, count); ++i) others.emplace_back([&] { run(false); });
    run(true);
  }
  if (failed) std::rethrow_exception(failed);
}

// Every instance has its requests from the outset, and depends on no other.
std::vector<Result> assigned_in_turn(Replay& replay, EndedCount& ended_count) {
  const Workload& workload = replay.workload;
  const auto rows = static_cast<Index>(workload.arrival.size());
  const auto copies = static_cast<Index>(replay.copies());
  std::vector<Result> results(copies);
  everywhere(replay.copies(), replay.fleet.threads, ended_count, [&](int instance, bool reports) {
    const auto i = static_cast<Index>(instance);
    const Deployed& of = replay.fleet.instances[i];
    const bool comes = of.pool == nullptr;  // else it is sent there, request by request
    const bool all = comes && copies == 1;
    Arrivals arrivals =
        all ? Arrivals::all(workload, of.prefix_sharing) : Arrivals(workload, of.prefix_sharing);
    for (Index row = i; comes && !all && row < rows; row += copies)
      arrivals.add(row, replay.requests.arrival[row], workload.requests.output[row]);
    const std::int64_t share = workload.concurrency / copies + (i < workload.concurrency % copies ? 1 : 0);
    const std::unique_ptr<Site> its = site(replay, instance, std::move(arrivals), workload.mode, share);
    for (Index row = i; !comes && row < rows; row += copies) {
      const Ticks at = replay.requests.arrival[row];
      if (its->next() < at)
        advance(*its, at, replay.check, ended_count, reports && row / copies % kLook == 0);
      its->deliver(row, at);
    }
    advance(*its, kNever, replay.check, ended_count, reports);
    results[i] = its->take();
  });
  return results;
}

// Instances behind a router, which sees what has ended before a request comes.
class Routed {
public:
  Routed(Replay& replay, EndedCount& ended_count)
      : replay_(replay),
        ended_count_(ended_count),
        router_(router_of(replay.fleet)),
        ends_(replay.copies()),
        sent_(replay.workload.arrival.size()) {
    if (replay.workload.mode == Mode::kClosed)
      sent_ = std::min(sent_, static_cast<std::size_t>(replay.workload.concurrency));
    for (int i = 0; i < replay.copies(); ++i)
      sites_.push_back(
          site(replay, i,
               Arrivals(replay.workload, replay.fleet.instances[static_cast<std::size_t>(i)].prefix_sharing),
               Mode::kOpen, 0));
  }

  std::vector<Result> run() {
    for (std::int64_t events = 0; !settled(); ++events) {
      if (next_ < sent_ && replay_.requests.arrival[next_] <= ends_.at()) {
        come(replay_.requests.arrival[next_]);
        continue;
      }
      if (events % kLook == 0) ended_count_.add(0, true);
      if (ends_.at() == kNever)
        throw std::logic_error("a request waits in front of instances that have none");
      go_on(ends_.index(), ends_.at());
    }
    // No more requests come: each instance goes on by itself.
    everywhere(replay_.copies(), replay_.fleet.threads, ended_count_, [&](int i, bool reports) {
      sim::advance(*sites_[static_cast<std::size_t>(i)], kNever, replay_.check, ended_count_, reports);
    });
    std::vector<Result> results;
    for (const auto& each : sites_) results.push_back(each->take());
    return results;
  }

private:
  static Router router_of(const Fleet& fleet) {
    std::vector<Router::Instance> instances;
    for (const Deployed& each : fleet.instances)
      instances.push_back({each.limits.tokens_per_pool * each.limits.pools, each.limits.max_requests,
                           each.limits.request_tokens});
    return {fleet.routing, std::move(instances), fleet.global};
  }

  bool settled() const { return next_ == replay_.workload.arrival.size() && queue_.empty(); }

  Wanted wanted(Index row) const {
    const RequestTable& requests = replay_.workload.requests;
    return {requests.prompt[row], requests.output[row], requests.prefix(row), requests.prefix_block_tokens};
  }

  // The next request of the workload.
  void come(Ticks at) {
    const auto row = static_cast<Index>(next_++);
    if (!queue_.empty() || !send(row, at)) queue_.push_back(row);
  }

  bool send(Index row, Ticks at) {
    const Wanted what = wanted(row);
    const Fleet::Own& own = replay_.fleet.own;
    const int chosen = own ? router_.route_to(own(what, router_.requests(), router_.kv_tokens()), what)
                           : router_.route(what);
    if (chosen == Router::kNone) return false;
    Site& its = *sites_[static_cast<std::size_t>(chosen)];
    advance(its, at);  // whose next end is no earlier
    its.deliver(row, at);
    left(chosen, at);  // it never fits
    return true;
  }

  void advance(Site& its, Ticks before) {
    while (!its.advance(before, replay_.check ? 1 : kLook)) {
      if (replay_.check) its.check_integrity();
    }
  }

  // Advances an instance up to and including a moment, and sends what waits for requests that end by then.
  void go_on(int instance, Ticks until) {
    advance(*sites_[static_cast<std::size_t>(instance)], until + 1);
    if (!left(instance, until)) return;
    while (!queue_.empty() && send(queue_.front(), until)) queue_.pop_front();
  }

  // Whether a request has left an instance. Closed, its client then sends its next one.
  bool left(int instance, Ticks at) {
    Site& its = *sites_[static_cast<std::size_t>(instance)];
    ends_.set(instance, its.next_end());
    if (its.departed().empty()) return false;
    for (const Index row : its.departed()) router_.left(instance, wanted(row));
    for (std::size_t i = 0; i < its.departed().size() && sent_ < replay_.workload.arrival.size();
         ++i, ++sent_) {
      auto& arrival = replay_.requests.arrival;
      const Ticks out = serving_of(replay_.fleet.instances[static_cast<std::size_t>(instance)]).out;
      arrival[sent_] = std::max(at + out, sent_ > 0 ? arrival[sent_ - 1] : 0);
    }
    ended_count_.add(its.departed().size(), false);
    its.departed().clear();
    return true;
  }

  Replay& replay_;
  EndedCount& ended_count_;
  Router router_;
  Earliest ends_;
  std::vector<std::unique_ptr<Site>> sites_;
  std::deque<Index> queue_;  // in front of the instances
  std::size_t next_ = 0;
  std::size_t sent_;  // by clients: all at times of their own, or so many at once and as others end
};

}  // namespace

Result simulate(const Workload& workload, const Fleet& fleet, const Scheduler::Priority& priority,
                Recording recording, const Progress& progress, bool check) {
  Replay replay{workload, fleet, priority, recording, check, rows_of(workload), {}};
  int batches = 0;
  for (const Deployed& each : fleet.instances) {
    replay.first_batch.push_back(batches);
    batches += each.rotation.batches;
  }
  EndedCount ended_count(progress);
  ended_count.add(0, true);
  // With a pool, a closed replay needs the router to see which requests have ended.
  const bool pools = std::ranges::any_of(fleet.instances, [](const Deployed& each) { return each.pool; });
  const bool separate = !fleet.own && Router::assigns_in_turn(fleet.routing, fleet.global) &&
                        !(pools && workload.mode == Mode::kClosed);
  Result result =
      merged(separate ? assigned_in_turn(replay, ended_count) : Routed(replay, ended_count).run());
  result.requests = std::move(replay.requests);
  return result;
}

}  // namespace lamina::sim
