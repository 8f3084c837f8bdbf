#include "sim/h2m2/layout.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

namespace lamina::h2m2 {

namespace {

void require_between(int n, int most, const char* what) {
  if (n >= 0 && n <= most) return;
  throw std::invalid_argument("the mapping has " + std::to_string(n) + " " + what + " in HBM but there are " +
                              std::to_string(most));
}

// Pages that the sides' parts of a region can come to beyond their even shares.
struct Rounding {
  double hbm = 0;
  double lpddr = 0;
};

Rounding rounding(const Region& region, int parts) {
  Rounding most;
  const auto pages = static_cast<double>(region.pages());
  for (int n = 0; n <= parts; ++n) {
    const Split split = region.split(n, parts);
    const double share = pages * n / parts;
    most.hbm = std::max(most.hbm, static_cast<double>(split.hbm_end) - share);
    most.lpddr = std::max(most.lpddr, share - static_cast<double>(split.lpddr_begin));
  }
  return most;
}

// How many units of each sublayer there are to put on either side, and what one takes.
struct Choices {
  int qkv, attention, fc;
  Footprint unit;
};

// Whether some of them can go to HBM and the others to LPDDR.
bool some_fit(const Choices& all, double hbm, double lpddr) {
  const auto fc_fits = [&](double hbm_left, double lpddr_left) {
    if (hbm_left < 0) return false;
    const double most = std::floor(hbm_left / all.unit.fc);
    return std::max(0.0, all.fc - most) * all.unit.fc <= lpddr_left;
  };
  for (int attention = 0; attention <= all.attention; ++attention) {
    for (int qkv = 0; qkv <= all.qkv; ++qkv) {
      const double in_hbm = attention * all.unit.attention + qkv * all.unit.qkv;
      const double in_lpddr =
          (all.attention - attention) * all.unit.attention + (all.qkv - qkv) * all.unit.qkv;
      if (fc_fits(hbm - in_hbm, lpddr - in_lpddr)) return true;
    }
  }
  return false;
}

}  // namespace

Split Region::split(std::int64_t n, std::int64_t parts) const {
  if (n == parts) return {pages(), pages()};
  const std::int64_t boundary = bytes * n / parts;
  return {(boundary + page_bytes - 1) / page_bytes, boundary / page_bytes};
}

Layout::Layout(const Board& board, const Shape& shape, std::int64_t columns)
    : shape_(shape), columns_(columns) {
  if (std::min({shape.layers, shape.hidden, shape.heads, shape.kv_heads, shape.head_dim,
                shape.element_bytes}) < 1 ||
      shape.heads % shape.kv_heads != 0 || columns < 0) {
    throw std::invalid_argument("a model has layers, and heads that divide over its KV heads");
  }
  if (slots_of_column(board, shape) < 1) {
    throw std::invalid_argument("a page of " + std::to_string(static_cast<std::int64_t>(board.page_bytes)) +
                                " bytes cannot hold the KV of one token of one head");
  }
  const auto page = static_cast<std::int64_t>(board.page_bytes);
  const std::int64_t hidden = std::int64_t{shape.hidden} * shape.element_bytes;
  const std::int64_t q = std::int64_t{shape.heads} * shape.head_dim;
  const std::int64_t kv = std::int64_t{shape.kv_heads} * shape.head_dim;
  qkv_ = {hidden * (q + 2 * kv), page};
  fc_ = {hidden * (q + std::int64_t{shape.ff_matrices} * shape.intermediate), page};
  lm_head_ = {hidden * shape.vocab, page};
}

std::int64_t Layout::slots_of_column(const Board& board, const Shape& shape) {
  return static_cast<std::int64_t>(board.page_bytes) /
         (std::int64_t{2} * shape.head_dim * shape.element_bytes);
}

std::int64_t Layout::slot_bytes() const {
  return pages_of_column() * 2 * shape_.head_dim * shape_.element_bytes;
}

std::int64_t Layout::weight_bytes() const {
  return shape_.layers * (qkv_.bytes + fc_.bytes) + lm_head_.bytes;
}

Pages::Page Layout::weights_begin(int layer, Part part) const {
  return static_cast<Pages::Page>(layer * layer_pages() + (part == Part::kQkv ? 0 : qkv_.pages()));
}

Pages::Page Layout::lm_head_begin() const { return static_cast<Pages::Page>(shape_.layers * layer_pages()); }

Pages::Page Layout::kv(int layer, int kv_head, std::int64_t column) const {
  const std::int64_t head = std::int64_t{layer} * shape_.kv_heads + kv_head;
  return static_cast<Pages::Page>(kv_begin() + head * columns_ + column);
}

void Layout::require_possible(const Mapping& mapping) const {
  const bool whole = mapping.whole_layers;
  require_between(mapping.qkv, whole ? shape_.layers : shape_.heads, whole ? "qkv layers" : "qkv heads");
  require_between(mapping.attention, whole ? shape_.layers : shape_.kv_heads,
                  whole ? "attention layers" : "KV groups");
  require_between(mapping.fc, whole ? shape_.layers : shape_.heads, whole ? "fc layers" : "fc heads");
}

Split Layout::split(const Mapping& mapping, int layer, Part part) const {
  const int n = part == Part::kQkv ? mapping.qkv : mapping.fc;
  return mapping.whole_layers ? region(part).split(layer < n, 1) : region(part).split(n, shape_.heads);
}

// Which has no layer: of whole layers it takes the share that fc's layers are of all.
Split Layout::lm_head_split(const Mapping& mapping) const {
  return lm_head_.split(mapping.fc, mapping.whole_layers ? shape_.layers : shape_.heads);
}

int Layout::kv_heads_in_hbm(const Mapping& mapping, int layer) const {
  if (!mapping.whole_layers) return mapping.attention;
  return layer < mapping.attention ? shape_.kv_heads : 0;
}

Layout::Use Layout::use(const Mapping& mapping, std::int64_t columns) const {
  Use use;
  const auto add = [&](const Region& region, const Split& split, std::int64_t times, std::int64_t& hbm) {
    hbm += times * split.hbm_end;
    use.lpddr += times * (region.pages() - split.lpddr_begin);
  };
  for (const Part part : {Part::kQkv, Part::kFc}) {
    std::int64_t& hbm = part == Part::kQkv ? use.hbm_qkv : use.hbm_fc;
    // All layers are identical, except that of whole layers the first are on the one side and the last on the
    // other.
    const int n = part == Part::kQkv ? mapping.qkv : mapping.fc;
    const int uniform = mapping.whole_layers ? n : shape_.layers;
    if (uniform > 0) add(region(part), split(mapping, 0, part), uniform, hbm);
    if (uniform < shape_.layers)
      add(region(part), split(mapping, uniform, part), shape_.layers - uniform, hbm);
  }
  add(lm_head_, lm_head_split(mapping), 1, use.hbm_fc);
  const std::int64_t heads = mapping.whole_layers ? std::int64_t{mapping.attention} * shape_.kv_heads
                                                  : std::int64_t{shape_.layers} * mapping.attention;
  use.hbm_kv = columns * heads;
  use.lpddr += columns * (pages_of_column() - heads);
  return use;
}

std::int64_t frames_of(const Side& side, const Board& board) {
  return static_cast<std::int64_t>(side.capacity_bytes / board.page_bytes);
}

Reserve reserve_of(const Board& board, const Shape& shape) {
  const Layout layout(board, shape, 0);
  double hbm = shape.layers;
  double lpddr = shape.layers + 1;
  for (const Layout::Part part : {Layout::Part::kQkv, Layout::Part::kFc}) {
    const Rounding each = rounding(layout.region(part), shape.heads);
    hbm += shape.layers * each.hbm;
    lpddr += shape.layers * each.lpddr;
  }
  const Rounding by_head = rounding(layout.lm_head(), shape.heads);
  const Rounding by_layer = rounding(layout.lm_head(), shape.layers);
  hbm += std::max(by_head.hbm, by_layer.hbm);
  lpddr += std::max(by_head.lpddr, by_layer.lpddr);
  return {static_cast<std::int64_t>(std::ceil(hbm)), static_cast<std::int64_t>(std::ceil(lpddr))};
}

Room paged_room(const Board& board, const Shape& shape, std::int64_t columns) {
  const Layout layout(board, shape, 0);
  const Reserve reserve = reserve_of(board, shape);
  const auto bytes = [&](std::int64_t pages) { return static_cast<double>(pages * layout.page_bytes()); };
  Room room;
  room.hbm_bytes = bytes(frames_of(board.hbm, board) - reserve.hbm_frames);
  room.lpddr_bytes = bytes(frames_of(board.lpddr, board) - reserve.lpddr_frames);
  room.unit.qkv = bytes(shape.layers * layout.region(Layout::Part::kQkv).pages()) / shape.heads;
  room.unit.fc =
      bytes(shape.layers * layout.region(Layout::Part::kFc).pages() + layout.lm_head().pages()) / shape.heads;
  room.unit.attention = bytes(columns * shape.layers);
  return room;
}

std::int64_t most_columns(const Board& board, const Shape& shape) {
  const double by_layer = static_cast<double>(shape.heads) / shape.layers;
  const double kv_by_layer = static_cast<double>(shape.kv_heads) / shape.layers;
  Room room = paged_room(board, shape, 1);
  const double column = room.unit.attention;
  const auto fits = [&](std::int64_t columns) {
    const double kv = static_cast<double>(columns) * column;
    const Choices heads{shape.heads, shape.kv_heads, shape.heads, {room.unit.qkv, kv, room.unit.fc}};
    const Choices layers{shape.layers,
                         shape.layers,
                         shape.layers,
                         {room.unit.qkv * by_layer, kv * kv_by_layer, room.unit.fc * by_layer}};
    // A page to spare on both sides: policies may add up in another order, and must not miss what is found
    // here.
    const double hbm = room.hbm_bytes - board.page_bytes;
    const double lpddr = room.lpddr_bytes - board.page_bytes;
    return some_fit(heads, hbm, lpddr) && some_fit(layers, hbm, lpddr);
  };
  // More cannot be numbered. However many fit next to the weights on one side, with the other empty, need no
  // trying; from there upwards, because a number may fail where a larger one fits: KV heads are coarse where
  // there are few of them.
  const std::int64_t most = INT32_MAX / Layout::slots_of_column(board, shape);
  const double weights = shape.heads * (room.unit.qkv + room.unit.fc);
  const double column_of_all = column * shape.kv_heads;
  const auto on_one_side = [&](double there, double elsewhere) {
    const double columns = std::floor((there - weights) / column_of_all) - 1;
    return elsewhere < board.page_bytes ? 0.0 : columns;
  };
  std::int64_t columns = static_cast<std::int64_t>(
      std::clamp(std::max(on_one_side(room.hbm_bytes - board.page_bytes, room.lpddr_bytes),
                          on_one_side(room.lpddr_bytes - board.page_bytes, room.hbm_bytes)),
                 0.0, static_cast<double>(most)));
  while (columns < most && fits(columns + 1)) ++columns;
  return columns;
}

std::int64_t waste_by_request(const Board& board, const Shape& shape, std::int64_t batch) {
  return batch * shape.layers * 2 * static_cast<std::int64_t>(board.page_bytes) / 2;
}

std::int64_t waste_of_activations(const Board& board, const Shape& shape, std::int64_t batch) {
  const Region tensor{batch * shape.hidden * shape.element_bytes,
                      static_cast<std::int64_t>(board.page_bytes)};
  return shape.layers * (tensor.pages() * tensor.page_bytes - tensor.bytes);
}

}  // namespace lamina::h2m2
