#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/router.hpp"
#include "core/scheduler.hpp"
#include "sim/arrivals.hpp"
#include "sim/costs.hpp"
#include "sim/h2m2/board.hpp"
#include "sim/h2m2/policy.hpp"
#include "sim/handover.hpp"
#include "sim/pipeline.hpp"

namespace lamina::sim {

inline constexpr Ticks kNotYet = -1;

// One row a request, in the order of the trace. Times are ticks; -1 where it did not come to that.
struct RequestRows {
  std::vector<Ticks> arrival, admitted, first_token, finished;
  std::vector<std::int64_t> first_iteration, last_iteration;
  std::vector<std::int32_t> batch;
  std::vector<std::int32_t> preemptions;
};

// An uninterrupted run of iterations of a request that was preempted: [first, last] of `batch`.
struct Stint {
  std::uint32_t request;
  std::int32_t batch;
  std::int64_t first;
  std::int64_t last;
};

// A column that is written by index and never shrinks; it starts uninitialised.
template <typename T>
class Column {
public:
  struct Free {
    void operator()(T* values) const { std::free(values); }
  };
  using Owned = std::unique_ptr<T[], Free>;

  T& operator[](std::size_t row) { return values_[row]; }
  // Large memory is moved by its page table, which copies nothing and keeps the pages that were touched.
  void grow(std::size_t capacity) {
    void* const larger = std::realloc(values_.get(), capacity * sizeof(T));
    if (larger == nullptr) throw std::bad_alloc();
    static_cast<void>(values_.release());
    values_.reset(static_cast<T*>(larger));
  }
  Owned take() { return std::move(values_); }

private:
  Owned values_;
};

// One row an iteration of a batch, in the order of their boundaries. `iteration` counts per batch.
struct IterationRows {
  std::size_t rows = 0;
  Column<std::int32_t> batch;
  Column<std::int64_t> iteration;
  Column<Ticks> start, duration;
  Column<std::int32_t> size, joined;
  Column<std::int64_t> kv_tokens;
  Column<Ticks> model, attention, network, host;

  // The index of a new row; one test for all columns, because this is done for every iteration.
  std::size_t add() {
    if (rows == capacity_) grow();
    return rows++;
  }

private:
  void grow() {
    capacity_ = capacity_ == 0 ? kFirst : capacity_ * 2;
    const auto all = [&](auto&... columns) { (columns.grow(capacity_), ...); };
    all(batch, iteration, start, duration, size, joined, kv_tokens, model, attention, network, host);
  }
  // Memory is only touched where rows are written, so a large start costs a short run nothing.
  static constexpr std::size_t kFirst = 1 << 17;
  std::size_t capacity_ = 0;
};

// One row an iteration of a board: what its memories hold while it runs, and what was moved for it before.
struct MemoryRows {
  std::vector<std::int32_t> qkv_heads, attention_groups, fc_heads;  // on the HBM side
  std::vector<std::int64_t> hbm_qkv_bytes, hbm_kv_bytes, hbm_fc_bytes, hbm_free_bytes;
  std::vector<std::int64_t> lpddr_bytes, wasted_bytes;
  std::vector<std::int64_t> moved_bytes, compacted_bytes;
  std::vector<Ticks> moving, hidden, hbm_busy, lpddr_busy;
};

// One row an iteration of devices that compute prompts for others: prompts that end, how many of these get
// their first token so, and tokens of chunks.
struct PoolRows {
  std::int32_t engines = 0;
  std::vector<std::int32_t> engine, prompts, made, prompt_tokens;
  std::vector<Ticks> start, duration, busy;
};

// Between a request's first token, made by the pool, and its second.
struct Gap {
  std::uint32_t request;
  Ticks at;
  Ticks gap;
};

// What iterations come to where their rows are not kept, added up exactly whatever ran first. Gaps between
// tokens are counted in classes no wider than a thousandth of what they hold.
struct Tally {
  using Sum = unsigned __int128;

  std::vector<std::int64_t> gaps;  // tokens, by class
  std::int64_t iterations = 0, tokens = 0, prompt_tokens = 0;
  // Ticks times requests that got a token.
  Sum duration = 0, model = 0, attention = 0, network = 0, host = 0, waiting = 0, overlapped = 0;

  void gap(Ticks ticks, std::int64_t tokens_of) {
    const std::size_t of = class_of(ticks);
    if (of >= gaps.size()) gaps.resize(of + 1);
    gaps[of] += tokens_of;
  }
  void add(const Tally& other);

  // Whole ticks below 2^11; above, the eleven leading bits.
  static std::size_t class_of(Ticks ticks) {
    const int shift =
        std::max(0, static_cast<int>(std::bit_width(static_cast<std::uint64_t>(ticks))) - kBits);
    return (static_cast<std::size_t>(shift) << (kBits - 1)) + static_cast<std::size_t>(ticks >> shift);
  }
  // The middle of a class.
  static Ticks middle(std::size_t of) {
    if (of < std::size_t{1} << kBits) return static_cast<Ticks>(of);
    const std::size_t shift = (of >> (kBits - 1)) - 1;
    const std::size_t lowest = (of - (shift << (kBits - 1))) << shift;
    return static_cast<Ticks>(lowest + (std::size_t{1} << shift) / 2);
  }
  static constexpr int kBits = 11;
};

struct Result {
  RequestRows requests;
  IterationRows iterations;
  std::vector<Stint> stints;
  std::vector<Ticks> replica_busy;
  Ticks attention_busy = 0;
  Ticks end = 0;
  Ticks queue_empty_at = 0;  // when the queue was first found empty after requests had come
  std::int64_t peak_kv_tokens = 0;
  std::int64_t kv_capacity_tokens = 0;
  std::vector<Stretch> timeline;
  std::optional<MemoryRows> memory;                        // of a board whose policy maps
  std::optional<std::vector<std::int32_t>> prompt_tokens;  // of every iteration, where prompts are computed
  std::optional<PoolRows> pool;                            // where others compute them
  std::vector<Gap> gaps;
  std::optional<Tally> tally;  // in place of iterations, of these gaps, and of prompt_tokens
};

struct Recording {
  Ticks from = 0;
  Ticks to = 0;
};

// A board in place of tables: its times are worked out at every boundary, from its requests.
struct BoardCosts {
  ServingCosts serving;
  h2m2::Board board;
  h2m2::Shape shape;
  std::string policy;
  bool translated = false;
  h2m2::Shares shares;
  // What moves between the sides passes behind the last iteration, as far as LPDDR has time there. Without
  // it the next iteration waits for all of it.
  bool overlap_moves = false;
};

// KV that a board's scheduler may hand out: however requests share it, the policy finds room. No tokens where
// not even the weights fit.
struct KvRoom {
  std::int64_t tokens = 0;
  std::int64_t column_tokens = 1;  // what is allocated at once, where memory is paged
};
KvRoom kv_room(const BoardCosts& costs);

// Called now and then with the number of finished requests; what it throws ends the run.
using Progress = std::function<void(std::int64_t)>;

// Devices that compute prompts, one after the other in chunks, and hand their KV over.
struct PromptPool {
  int engines = 1;
  SchedulerLimits limits;
  std::int64_t budget = 0;
  int layers = 0;
  const Costs* costs = nullptr;
  KvLink link;
  bool pulled = false;  // by attention workers in their free time, layer by layer; or pushed when it is whole
};

// One deployment. A board has a single batch, serial.
struct Deployed {
  SchedulerLimits limits;
  Rotation rotation;
  int layers = 0;
  const Costs* costs = nullptr;
  const BoardCosts* board = nullptr;
  std::int64_t prompt_budget = 0;  // tokens of an iteration with colocated prefill
  const PromptPool* pool = nullptr;
  bool prefix_sharing = false;
};

// Several of them, and how requests are routed.
struct Fleet {
  // A user's own router: the instance, from what each one has (requests, KV tokens that these may need).
  using Own = std::function<int(const Wanted&, std::span<const std::int64_t>, std::span<const std::int64_t>)>;

  std::vector<Deployed> instances;
  Routing routing = Routing::kRoundRobin;
  Own own;
  bool global = false;  // requests wait in front of the instances
  bool keep_iterations = true;
  int threads = 1;
};

// Replays the workload, as docs/simulator.md defines it.
Result simulate(const Workload& workload, const Fleet& fleet, const Scheduler::Priority& priority,
                Recording recording, const Progress& progress, bool check);

}  // namespace lamina::sim
