#include "sim/h2m2/layer_replay.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "sim/h2m2/layout.hpp"
#include "sim/h2m2/times.hpp"
#include "sim/h2m2/tlb.hpp"

namespace lamina::h2m2 {

namespace {

struct Piece {
  std::int64_t address = 0;
  std::int64_t bytes = 0;
};

// What a core reads before it can compute on it; a write of results takes no computing.
struct Item {
  std::vector<Piece> pieces;
  double compute_ns = 0;

  void clear() {
    pieces.clear();
    compute_ns = 0;
  }
  void add(std::int64_t address, std::int64_t bytes) {
    if (bytes > 0) pieces.push_back({address, bytes});
  }
  std::int64_t bytes() const {
    return std::accumulate(pieces.begin(), pieces.end(), std::int64_t{0},
                           [](std::int64_t sum, const Piece& piece) { return sum + piece.bytes; });
  }
};

std::int64_t rounded(double bytes) { return static_cast<std::int64_t>(std::llround(bytes)); }

// Where a side has a layer's data: addresses in its memory.
class Places {
public:
  Places(const Board& board, const Shape& shape, const Mapping& mapping, std::int64_t tokens, Where where)
      : page_bytes_(static_cast<std::int64_t>(board.page_bytes)),
        slots_(Layout::slots_of_column(board, shape)),
        layer_(shape.layers / 2),
        layers_(shape.layers) {
    const Layout layout(board, shape, (tokens + slots_ - 1) / slots_);
    const bool hbm = where == Where::kHbm;
    groups_ = hbm ? mapping.attention : shape.kv_heads - mapping.attention;
    std::array<std::int64_t, 2> begin{}, pages{};
    for (const Layout::Part part : {Layout::Part::kQkv, Layout::Part::kFc}) {
      const auto i = static_cast<std::size_t>(part);
      const Region& region = layout.region(part);
      const Split split = layout.split(mapping, 0, part);
      const int heads = part == Layout::Part::kQkv ? mapping.qkv : mapping.fc;
      pages[i] = hbm ? split.hbm_end : region.pages() - split.lpddr_begin;
      // LPDDR's part begins where HBM's ends, within a page.
      begin[i] = hbm ? 0 : region.bytes * heads / shape.heads - split.lpddr_begin * page_bytes_;
    }
    const std::int64_t first = layer_ * (pages[0] + pages[1]);
    weights_ = {first * page_bytes_ + begin[0], (first + pages[0]) * page_bytes_ + begin[1]};
    kv_ = layers_ * (pages[0] + pages[1]);
    activations_ = (kv_ + layers_ * groups_ * ((tokens + slots_ - 1) / slots_)) * page_bytes_;
  }

  std::int64_t qkv() const { return weights_[0]; }
  std::int64_t fc() const { return weights_[1]; }
  std::int64_t activations() const { return activations_; }
  std::int64_t groups() const { return groups_; }

  // K or V of consecutive token slots: K of all slots of a page is in its first half.
  void add_kv(Item& item, std::int64_t group, std::int64_t slot, std::int64_t count, bool values) const {
    const std::int64_t row = page_bytes_ / slots_ / 2;
    while (count > 0) {
      const std::int64_t column = slot / slots_;
      const std::int64_t here = std::min(count, (column + 1) * slots_ - slot);
      const std::int64_t page = kv_ + column * layers_ * groups_ + layer_ * groups_ + group;
      item.add(page * page_bytes_ + (values ? slots_ * row : 0) + slot % slots_ * row, here * row);
      slot += here;
      count -= here;
    }
  }

private:
  std::int64_t page_bytes_, slots_, layer_, layers_;
  std::int64_t groups_ = 0;
  std::int64_t kv_ = 0;  // its first page
  std::array<std::int64_t, 2> weights_{};
  std::int64_t activations_ = 0;
};

// A matrix in tiles, column of tiles by column of tiles. Before its tiles a core reads its part of the
// activations, and after a column's last tile it writes what came out of it.
class MatrixItems {
public:
  MatrixItems(const Board& board, const Reading& reading, const Gemm& matrix, std::int64_t batch,
              int element_bytes, std::int64_t weights, std::int64_t input, int cores)
      : reading_(reading),
        size_(board.mm_size),
        rows_(rounded(matrix.rows * element_bytes)),
        columns_(matrix.columns),
        deep_(static_cast<std::int64_t>(std::ceil(matrix.rows / board.mm_size))),
        tiles_(deep_ * static_cast<std::int64_t>(std::ceil(matrix.columns / board.mm_size))),
        each_(static_cast<std::int64_t>(matrix.waves)),
        cores_(cores),
        batch_bytes_(batch * element_bytes),
        tile_rows_(std::int64_t{board.mm_size} * element_bytes),
        tile_ns_(Chips::cycles_a_tile(board, static_cast<double>(batch)) * board.cycle_ns),
        weights_(weights),
        input_(input),
        output_(input + batch * rows_) {}

  bool operator()(int core, std::int64_t index, Item& item) const {
    item.clear();
    if (index == 0) {
      const std::int64_t all = batch_bytes_ * rows_ / element();
      item.add(input_ + all * core / cores_, all * (core + 1) / cores_ - all * core / cores_);
      return true;
    }
    const std::int64_t place = index - 1;
    if (place >= each_) return false;
    const std::int64_t tile = reading_.in_turn ? place * cores_ + core : core * each_ + place;
    if (tile >= tiles_) return false;
    const std::int64_t strip = tile / deep_;
    const std::int64_t down = tile % deep_;
    const double left = static_cast<double>(strip) * size_;
    const double width = std::min(static_cast<double>(size_), columns_ - left);
    const std::int64_t base = weights_ + rounded(left * static_cast<double>(rows_));
    const std::int64_t top = down * tile_rows_;
    const std::int64_t bottom = std::min(top + tile_rows_, rows_);
    if (reading_.packed) {
      const std::int64_t begin = rounded(static_cast<double>(top) * width);
      item.add(base + begin, rounded(static_cast<double>(bottom) * width) - begin);
    } else {
      const auto whole = static_cast<std::int64_t>(width);
      for (std::int64_t column = 0; column < whole; ++column) {
        item.add(base + column * rows_ + top, bottom - top);
      }
      const double rest = width - static_cast<double>(whole);
      const std::int64_t begin = rounded(static_cast<double>(top) * rest);
      item.add(base + whole * rows_ + begin, rounded(static_cast<double>(bottom) * rest) - begin);
    }
    if (down == deep_ - 1) {
      const std::int64_t begin = rounded(left * static_cast<double>(batch_bytes_));
      item.add(output_ + begin, rounded((left + width) * static_cast<double>(batch_bytes_)) - begin);
    }
    item.compute_ns = reading_.computed ? tile_ns_ : 0;
    return true;
  }

private:
  std::int64_t element() const { return tile_rows_ / size_; }

  Reading reading_;
  int size_;
  std::int64_t rows_;  // bytes of one column
  double columns_;
  std::int64_t deep_, tiles_, each_;
  int cores_;
  std::int64_t batch_bytes_;  // of one row of activations over the batch
  std::int64_t tile_rows_;    // bytes of one column of a tile
  double tile_ns_;
  std::int64_t weights_, input_, output_;
};

// KV of one request and head after another: K for the scores, then V.
class AttentionItems {
public:
  AttentionItems(const Board& board, const Shape& shape, const Reading& reading, const Places& places,
                 const std::vector<std::int64_t>& lengths, int cores)
      : board_(board), reading_(reading), places_(places), lengths_(lengths), cores_(cores) {
    heads_ = board.reread_kv ? shape.group() : 1;
    products_ = 2.0 * shape.group() / heads_ * ((shape.head_dim + board.mv_width - 1) / board.mv_width);
    softmax_ = 3.0 * shape.group() / heads_ / board.vector_width;
    units_ = places.groups() * static_cast<std::int64_t>(lengths.size()) * heads_;
    each_ = (units_ + cores - 1) / cores;
    std::int64_t slot = 0;
    for (const std::int64_t length : lengths) {
      begin_.push_back(slot);
      slot += length;
    }
  }

  bool operator()(int core, std::int64_t index, Item& item) const {
    item.clear();
    if (index >= each_) return false;
    const std::int64_t unit = reading_.in_turn ? index * cores_ + core : core * each_ + index;
    if (unit >= units_) return false;
    const auto requests = static_cast<std::int64_t>(lengths_.size());
    const std::int64_t group = unit / heads_ / requests;
    const auto request = static_cast<std::size_t>(unit / heads_ % requests);
    const std::int64_t length = lengths_[request];
    places_.add_kv(item, group, begin_[request], length, false);
    places_.add_kv(item, group, begin_[request], length, true);
    if (reading_.computed) {
      const auto rows = static_cast<double>((length + board_.mv_rows - 1) / board_.mv_rows);
      item.compute_ns = std::max(products_ * rows, softmax_ * static_cast<double>(length)) * board_.cycle_ns;
    }
    return true;
  }

private:
  const Board& board_;
  Reading reading_;
  const Places& places_;
  const std::vector<std::int64_t>& lengths_;
  int cores_;
  std::int64_t heads_ = 1;  // that read a group's KV each
  double products_ = 0, softmax_ = 0;
  std::int64_t units_ = 0, each_ = 0;
  std::vector<std::int64_t> begin_;  // of each request, its first slot
};

// The cores of a side, each with a DMA engine that fills its scratchpad as far ahead of its units as there is
// room.
class Cores {
public:
  Cores(const Board& board, double latency_ns, int cores, Dram& dram, Tlb* tlb)
      : spm_bytes_(static_cast<std::int64_t>(board.spm_bytes)),
        page_bytes_(static_cast<std::int64_t>(board.page_bytes)),
        latency_ns_(latency_ns),
        dram_(dram),
        tlb_(tlb),
        cores_(static_cast<std::size_t>(cores)) {}

  // When all items are computed on, begun at this time.
  template <typename Items>
  double run(const Items& items, double begin) {
    for (std::size_t i = 0; i < cores_.size(); ++i) {
      cores_[i] = Core{};
      cores_[i].at = begin;
      cores_[i].computed = begin;
      next(items, i);
    }
    while (Core* core = earliest()) {
      if (!step(*core)) continue;
      core->computed = std::max(core->computed, core->arrived) + core->item.compute_ns;
      core->stored.emplace_back(core->item_bytes, core->computed);
      next(items, static_cast<std::size_t>(core - cores_.data()));
    }
    double end = begin;
    for (const Core& core : cores_) end = std::max(end, core.computed);
    return end;
  }

private:
  struct Core {
    double at = 0;        // when it asks for its next block
    double computed = 0;  // when its unit is done with all it has been given
    double arrived = 0;   // when the item is there
    std::int64_t index = 0;
    std::int64_t blocks = 0;  // requested
    Item item;
    std::int64_t item_bytes = 0;
    std::size_t piece = 0;
    std::int64_t done = 0;   // bytes of the piece
    std::int64_t page = -1;  // the last one translated
    bool active = false;
    std::deque<std::pair<std::int64_t, double>>
        stored;  // items in the scratchpad, and when each is computed on
    std::int64_t stored_bytes = 0;
  };

  template <typename Items>
  void next(const Items& items, std::size_t i) {
    Core& core = cores_[i];
    core.active = items(static_cast<int>(i), core.index++, core.item);
    core.item_bytes = core.item.bytes();
    core.stored_bytes += core.active ? core.item_bytes : 0;
    core.piece = 0;
    core.done = 0;
    core.arrived = 0;
  }

  // Of simultaneous requests, the core with the fewest so far: they take turns.
  Core* earliest() {
    Core* match = nullptr;
    for (Core& core : cores_) {
      if (!core.active) continue;
      if (!match || std::pair(core.at, core.blocks) < std::pair(match->at, match->blocks)) match = &core;
    }
    return match;
  }

  // Asks for a block, or finds out that it has to wait: for room in the scratchpad, a translation, or a
  // channel. Whether the item is then complete.
  bool step(Core& core) {
    while (core.stored_bytes > spm_bytes_ && !core.stored.empty()) {
      const auto [bytes, computed] = core.stored.front();
      core.stored.pop_front();
      core.stored_bytes -= bytes;
      if (computed > core.at) {
        core.at = computed;
        return false;
      }
    }
    if (core.item.pieces.empty()) return true;
    const Piece& piece = core.item.pieces[core.piece];
    const std::int64_t address = piece.address + core.done;
    const std::int64_t page = address / page_bytes_;
    if (tlb_ && page != core.page) {
      core.page = page;
      const double known = tlb_->translate(page, core.at);
      if (known > core.at) {
        core.at = known;
        return false;
      }
    }
    if (const double room = dram_.room_at(address); room > core.at) {
      core.at = room;
      return false;
    }
    const std::int64_t block = dram_.block_bytes();
    const std::int64_t bytes = std::min({piece.bytes - core.done, (address / block + 1) * block - address,
                                         (page + 1) * page_bytes_ - address});
    core.arrived = std::max(core.arrived, dram_.serve(address, bytes, core.at) + latency_ns_);
    ++core.blocks;
    core.done += bytes;
    if (core.done < piece.bytes) return false;
    core.done = 0;
    return ++core.piece == core.item.pieces.size();
  }

  std::int64_t spm_bytes_, page_bytes_;
  double latency_ns_;
  Dram& dram_;
  Tlb* tlb_;
  std::vector<Core> cores_;
};

Dram::Counts since(const Dram::Counts& now, const Dram::Counts& before) {
  return {now.bytes - before.bytes,   now.bursts - before.bursts,       now.hits - before.hits,
          now.opened - before.opened, now.conflicts - before.conflicts, now.refreshes - before.refreshes};
}

}  // namespace

std::vector<KernelReplay> replay_layer(const Board& board, const Shape& shape, const Mapping& mapping,
                                       const std::vector<std::int64_t>& lengths, Where where, int chips,
                                       const DramTiming& timing, const Reading& reading) {
  if (mapping.whole_layers) throw std::invalid_argument("a layer that is not split is not replayed");
  const bool hbm = where == Where::kHbm;
  const Side& side = hbm ? board.hbm : board.lpddr;
  DramTiming taken = timing;
  if (taken.burst_ns == 0) {
    taken.burst_ns = static_cast<double>(timing.burst_bytes) * timing.channels / side.bytes_per_ns;
  }
  Dram dram(taken);
  Tlb tlb(board.tlb_entries * chips, board.tlb_miss_ns, board.tlb_misses_at_once * chips);
  const int count = board.cores * chips;
  Cores cores(board, side.latency_ns, count, dram, reading.translated ? &tlb : nullptr);
  const Chips closed(board, side, chips, shape.element_bytes);

  const auto batch = static_cast<std::int64_t>(lengths.size());
  const std::int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  Moment moment{batch, tokens, 0};
  for (const std::int64_t length : lengths) moment.kv_rows += (length + board.mv_rows - 1) / board.mv_rows;
  const Places places(board, shape, mapping, tokens, where);

  std::vector<KernelReplay> replayed;
  double now = 0;
  const auto note = [&](Kernel kernel, const auto& items, double after_ns, const KernelTime& formula,
                        double bytes) {
    const Dram::Counts before = dram.counts();
    const std::int64_t misses = tlb.misses();
    const double end = cores.run(items, now) + after_ns;
    replayed.push_back(
        {kernel, end - now, formula.total_ns(), bytes, tlb.misses() - misses, since(dram.counts(), before)});
    now = end;
  };
  const double fill_and_drain = 3 * board.mm_size * board.cycle_ns;
  std::int64_t at = places.qkv();
  const auto multiply = [&](Kernel kernel, double rows, double columns) {
    if (columns == 0 || batch == 0) return;
    const Gemm matrix = closed.matrix(rows, columns);
    const double stored = static_cast<double>(batch) * rows * shape.element_bytes;
    if (stored > board.spm_bytes * count) {
      throw std::invalid_argument("the batch's activations do not fit into half of the scratchpads");
    }
    const MatrixItems items(board, reading, matrix, batch, shape.element_bytes, at, places.activations(),
                            count);
    const double bytes =
        matrix.weight_bytes + static_cast<double>(batch) * (rows + columns) * shape.element_bytes;
    note(kernel, items, side.latency_ns + fill_and_drain,
         closed.gemm(matrix, static_cast<double>(batch), reading.translated), bytes);
    at += rounded(matrix.weight_bytes);
  };
  const auto share = [&](double columns, int here) {
    return columns * (hbm ? here : shape.heads - here) / shape.heads;
  };

  const double hidden = shape.hidden;
  const double query = static_cast<double>(shape.heads) * shape.head_dim;
  multiply(Kernel::kQkv, hidden, share(query + 2.0 * shape.kv_heads * shape.head_dim, mapping.qkv));
  const auto groups = static_cast<int>(places.groups());
  if (groups > 0 && batch > 0) {
    const double once = 2.0 * shape.head_dim * groups * static_cast<double>(tokens) * shape.element_bytes;
    note(Kernel::kAttention, AttentionItems(board, shape, reading, places, lengths, count), side.latency_ns,
         closed.attention(shape, groups, moment, reading.translated),
         board.reread_kv ? once * shape.group() : once);
  }
  at = places.fc();
  multiply(Kernel::kProjection, query, share(hidden, mapping.fc));
  multiply(Kernel::kUp, hidden,
           share(static_cast<double>(shape.ff_matrices - 1) * shape.intermediate, mapping.fc));
  multiply(Kernel::kDown, shape.intermediate, share(hidden, mapping.fc));
  return replayed;
}

}  // namespace lamina::h2m2
