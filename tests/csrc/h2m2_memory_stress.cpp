// Drives boards' memories at random, millions of events: requests come, grow and go, and every policy that
// maps decides where things are. Beside it, breaks memories on purpose to see that check_integrity() can say
// no. Meant for a sanitized build. Exits with 1 on a mismatch.

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "expect.hpp"
#include "sim/h2m2/layout.hpp"
#include "sim/h2m2/memory.hpp"
#include "sim/h2m2/policy.hpp"

namespace lamina::h2m2 {

struct MemoryTestAccess {
  static auto& bank(Pages& pages, Where side) { return pages.of(side); }
  static auto& pages(Memory& memory) { return memory.pages_; }
  static auto& slots(Memory& memory) { return memory.slots_; }
  static auto& placed(Memory& memory) { return memory.placed_; }
  static auto& columns_placed(Memory& memory) { return memory.columns_placed_; }
  static auto& mapping(Memory& memory) { return memory.mapping_; }
  static auto& free_bits(TokenSlots& slots) { return slots.free_bits_; }
  static auto& lowest_word(TokenSlots& slots) { return slots.lowest_word_; }
  static auto& live(TokenSlots& slots) { return slots.live_; }
  static auto& in_use(TokenSlots& slots) { return slots.columns_in_use_; }
  static auto& tokens(TokenSlots& slots) { return slots.tokens_; }
  static auto& rows(TokenSlots& slots) { return slots.rows_; }
  static auto& stored(TokenSlots& slots) { return slots.stored_; }
};

}  // namespace lamina::h2m2

namespace {

using namespace lamina::h2m2;
using Access = MemoryTestAccess;
using Random = std::mt19937_64;

std::int64_t below(Random& random, std::int64_t n) {
  return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
}

std::int64_t between(Random& random, std::int64_t least, std::int64_t most) {
  return least + below(random, most - least + 1);
}

Board a_board(double page_bytes, std::int64_t hbm_frames, std::int64_t lpddr_frames) {
  Board board;
  board.page_bytes = page_bytes;
  board.hbm = {static_cast<double>(hbm_frames) * page_bytes, 3000, 32, 1};
  board.lpddr = {static_cast<double>(lpddr_frames) * page_bytes, 544, 45, 1};
  board.link_bytes_per_ns = 960;
  board.cores = 4;
  board.mm_size = 128;
  board.mv_rows = 32;
  board.mv_width = 128;
  board.vector_width = 128;
  board.spm_bytes = 16 * 1024 * 1024;
  board.launch_ns = 1000;
  board.kernels = 5;
  board.tlb_entries = 2048;
  board.tlb_miss_ns = 300;
  board.tlb_misses_at_once = 8;
  board.dram_efficiency = 0.82;
  return board;
}

Shape any_shape(Random& random) {
  Shape shape;
  shape.kv_heads = static_cast<int>(between(random, 1, 6));
  shape.heads = shape.kv_heads * static_cast<int>(between(random, 1, 4));
  shape.layers = static_cast<int>(between(random, 1, 5));
  shape.hidden = static_cast<int>(between(random, 1, 60));
  shape.head_dim = static_cast<int>(between(random, 1, 16));
  shape.intermediate = static_cast<int>(between(random, 1, 100));
  shape.ff_matrices = static_cast<int>(between(random, 2, 3));
  shape.vocab = below(random, 2) == 0 ? 0 : static_cast<int>(between(random, 1, 200));
  return shape;
}

// With little more memory than the weights and a few columns need, split anyhow.
Board tight_board(Random& random, const Shape& shape) {
  const double page_bytes = static_cast<double>(between(random, 64, 512));
  const Board spacious = a_board(page_bytes, 1, 1);
  const Layout layout(spacious, shape, 0);
  const Reserve reserve = reserve_of(spacious, shape);
  const std::int64_t shared =
      layout.pages() + between(random, 1, 12) * layout.pages_of_column() + between(random, 2, 6);
  const std::int64_t in_hbm = below(random, shared + 1);
  return a_board(page_bytes, reserve.hbm_frames + in_hbm, reserve.lpddr_frames + shared - in_hbm);
}

// Every policy that maps, with shares as FlexGen may have solved them.
std::vector<std::unique_ptr<Policy>> policies(const Board& board, const Shape& shape) {
  std::vector<std::unique_ptr<Policy>> all;
  for (const char* name : {"greedy", "oracle", "flexgen", "naive", "q-major", "a-major", "f-major", "lpddr",
                           "hierarchical", "8-hbm"}) {
    auto policy = make_policy(name, board, shape, true, {0.3, 0.3});
    if (policy->maps()) all.push_back(std::move(policy));
  }
  return all;
}

// A memory that is kept nearly full. Whatever comes, every policy has to find a mapping that fits.
class Walk {
public:
  Walk(Random& random, const Board& board, const Shape& shape, std::int64_t columns)
      : random_(random),
        layers_(shape.layers),
        memory_(board, shape, columns),
        policies_(policies(board, shape)),
        capacity_(columns * Memory::slots_of_column(board, shape)) {}

  // Events that happened.
  std::int64_t run(int boundaries) {
    for (int i = 0; i < boundaries; ++i) {
      leave_some();
      join_some();
      grow();
      if (below(random_, 2) == 0) compact();
      decide();
      if (below(random_, 8) == 0) check();
    }
    check();
    leave_all();
    decide();
    check();
    expect(memory_.occupancy().hbm_kv == 0 && memory_.slots().columns_in_use() == 0, "KV is left behind");
    return events_;
  }

private:
  void compact() {
    memory_.compact();
    const std::int64_t of_column = capacity_ / memory_.slots().columns();
    expect(memory_.slots().columns_in_use() == (memory_.tokens() + of_column - 1) / of_column,
           "a column is in use that need not be");
    ++events_;
  }

  void leave_some() {
    for (std::size_t i = 0; i < here_.size();) {
      if (below(random_, 6) != 0) {
        ++i;
        continue;
      }
      memory_.leave(here_[i]);
      here_[i] = here_.back();
      here_.pop_back();
      ++events_;
    }
  }

  void leave_all() {
    for (const Memory::Request request : here_) memory_.leave(request);
    here_.clear();
  }

  void join_some() {
    for (std::int64_t i = below(random_, 4); i > 0; --i) {
      const std::int64_t tokens = 1 + below(random_, capacity_ / 2 + 1);
      if (memory_.tokens() + tokens + std::ssize(here_) + 1 > capacity_) {
        expect_throws<NoRoom>([&] { memory_.join(next_, capacity_ - memory_.tokens() + 1); },
                              "joining in excess");
        return;
      }
      memory_.join(next_, tokens);
      here_.push_back(next_++);
      ++events_;
    }
  }

  void grow() {
    if (memory_.tokens() + std::ssize(here_) > capacity_) {
      expect_throws<NoRoom>([&] { memory_.grow(); }, "growing in excess");
      return;
    }
    memory_.grow();
    events_ += std::ssize(here_);
  }

  void decide() {
    const Policy& policy = *policies_[static_cast<std::size_t>(below(random_, std::ssize(policies_)))];
    const Moment moment{std::max<std::int64_t>(1, std::ssize(here_)), memory_.tokens(), memory_.rows()};
    const std::optional<Plan> plan = policy.plan(moment, memory_.room());
    expect(plan.has_value(), "a policy finds no mapping though there is one");
    const Memory::Traffic traffic = memory_.apply(plan->mapping);
    events_ += traffic.allocated + traffic.freed + traffic.moved();
    // What is kept for the activations, a page a layer, and the frame through which pages change sides.
    expect(memory_.pages().free(Where::kHbm) >= layers_, "no room is left for activations in HBM");
    expect(memory_.pages().free(Where::kLpddr) > layers_, "no room is left for activations in LPDDR");
  }

  void check() {
    try {
      memory_.check_integrity();
    } catch (const std::logic_error& error) {
      fail(error.what());
    }
  }

  Random& random_;
  std::int64_t layers_;
  Memory memory_;
  std::vector<std::unique_ptr<Policy>> policies_;
  std::int64_t capacity_;
  std::vector<Memory::Request> here_;
  Memory::Request next_ = 0;
  std::int64_t events_ = 0;
};

void policies_never_strand(Random& random) {
  std::int64_t events = 0;
  int boards = 0;
  while (boards < 300) {
    const Shape shape = any_shape(random);
    const Board board = tight_board(random, shape);
    if (Layout::slots_of_column(board, shape) < 1) continue;
    const std::int64_t most = Memory::most_columns(board, shape);
    if (most == 0) continue;
    events += Walk(random, board, shape, most).run(100);
    ++boards;
  }
  expect(events > 1'000'000, "too little happened to say anything");
}

// Each kind of damage in a memory of its own, with 3 columns in use and one that is not.
void damage(const char* expected, const std::function<void(Memory&)>& harm) {
  const Shape shape{2, 8, 2, 2, 4, 16, 2, 0, 1};
  Memory memory(a_board(128, 60, 60), shape, 4);
  memory.join(1, 20);
  memory.join(2, 20);
  memory.apply({1, 1, 1});
  memory.check_integrity();
  harm(memory);
  expect_message<std::logic_error>([&] { memory.check_integrity(); }, expected);
}

void damage_to_pages_is_noticed() {
  constexpr Pages::Page kInHbm = 2;
  constexpr Pages::Page kOnBoth = 3;
  const auto hbm = [](Memory& m) -> auto& { return Access::bank(Access::pages(m), Where::kHbm); };
  const auto frame = [=](Memory& m) -> auto& { return hbm(m).table[kInHbm]; };
  damage("no such free frame", [=](Memory& m) { hbm(m).free_frames[0] = 60; });
  damage("is free twice", [=](Memory& m) { hbm(m).free_frames[0] = hbm(m).free_frames[1]; });
  damage("is free and has an owner", [=](Memory& m) { hbm(m).owner[hbm(m).free_frames[0]] = kInHbm; });
  damage("is free and has an owner", [=](Memory& m) { hbm(m).free_frames.push_back(frame(m)); });
  damage("at a frame that there is not", [=](Memory& m) { frame(m) = 60; });
  damage("at a free frame", [=](Memory& m) { frame(m) = hbm(m).free_frames[0]; });
  damage("another page owns", [=](Memory& m) { frame(m) = hbm(m).table[kOnBoth]; });
  damage("another page owns", [=](Memory& m) { hbm(m).owner[frame(m)] = kOnBoth; });
  damage("lost: neither free nor owned", [=](Memory& m) { hbm(m).free_frames.pop_back(); });
  damage("by a page that is not there", [=](Memory& m) { frame(m) = Pages::kNone; });
  damage("by a page that there is not", [=](Memory& m) {
    hbm(m).owner[frame(m)] = 1000;
    frame(m) = Pages::kNone;
  });
  damage("not where the mapping says", [](Memory& m) { Access::pages(m).unmap(Where::kHbm, kInHbm); });
  damage("not where the mapping says", [](Memory& m) { Access::pages(m).unmap(Where::kLpddr, kOnBoth); });
  damage("not where the mapping says", [](Memory& m) { Access::pages(m).move(kInHbm, Where::kLpddr); });
  damage("not where the mapping says", [](Memory& m) { Access::pages(m).map(Where::kLpddr, kInHbm); });
  damage("not where the mapping says", [](Memory& m) { Access::placed(m)[0] = false; });
  damage("not where the mapping says", [](Memory& m) { Access::mapping(m) = Mapping{1, 2, 1}; });
  damage("placed are miscounted", [](Memory& m) { ++Access::columns_placed(m); });
}

void damage_to_slots_is_noticed() {
  const auto slots = [](Memory& m) -> auto& { return Access::slots(m); };
  const auto first = [=](Memory& m) -> auto& { return Access::stored(slots(m))[0]; };
  damage("where the map says", [=](Memory& m) { std::swap(first(m), Access::stored(slots(m))[1]); });
  damage("differ in number", [=](Memory& m) { Access::stored(slots(m)).pop_back(); });
  damage("a slot that there is not", [=](Memory& m) { first(m).slots[0] = 64; });
  damage("held twice", [=](Memory& m) { first(m).slots[0] = 1; });
  damage("neither free nor held", [=](Memory& m) { first(m).slots.pop_back(); });
  damage("neither free nor held", [=](Memory& m) { Access::free_bits(slots(m))[0] |= 1; });
  damage("below what is looked through", [=](Memory& m) { ++Access::lowest_word(slots(m)); });
  damage("tokens of a column", [=](Memory& m) { ++Access::live(slots(m))[3]; });
  damage("columns in use are miscounted", [=](Memory& m) { --Access::in_use(slots(m)); });
  damage("tokens are miscounted", [=](Memory& m) { ++Access::tokens(slots(m)); });
  damage("rows are miscounted", [=](Memory& m) { ++Access::rows(slots(m)); });
}

// With one free frame on either side, everything can still change sides.
void a_full_board_can_be_turned_over() {
  const Shape shape{1, 8, 1, 1, 4, 4, 2, 0, 1};  // of qkv and fc 12 pages each, of KV a page a token
  for (const std::int64_t in_hbm : {0, 1}) {
    Memory memory(a_board(8, 20, 20), shape, 1);
    memory.join(1, 1);
    memory.apply({1, 0, 0});
    const auto keep = [&](Where side, std::int64_t frames) {
      Access::bank(Access::pages(memory), side).free_frames.resize(static_cast<std::size_t>(frames));
    };
    keep(Where::kHbm, in_hbm);
    keep(Where::kLpddr, 1 - in_hbm);
    const Memory::Traffic traffic = memory.apply({0, 0, 1});
    expect(traffic.to_hbm == 12 && traffic.to_lpddr == 12, "not everything has changed sides");
    expect(memory.occupancy().hbm_fc == 12 && memory.occupancy().hbm_qkv == 0, "not everything is there");
  }
}

}  // namespace

int main() {
  Random random(20250101);
  damage_to_pages_is_noticed();
  damage_to_slots_is_noticed();
  a_full_board_can_be_turned_over();
  policies_never_strand(random);
  std::puts("h2m2_memory_stress: ok");
}
