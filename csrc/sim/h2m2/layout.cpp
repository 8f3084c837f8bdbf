#include "sim/h2m2/layout.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace lamina::h2m2 {

namespace {

void require_between(int n, int most, const char* what) {
  if (n >= 0 && n <= most) return;
  throw std::invalid_argument("the mapping has " + std::to_string(n) + " " + what + " in HBM but there are " +
                              std::to_string(most));
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
    // All layers are alike, except that of whole layers the first are on the one side and the last on the
    // other.
    const int n = part == Part::kQkv ? mapping.qkv : mapping.fc;
    const int alike = mapping.whole_layers ? n : shape_.layers;
    if (alike > 0) add(region(part), split(mapping, 0, part), alike, hbm);
    if (alike < shape_.layers) add(region(part), split(mapping, alike, part), shape_.layers - alike, hbm);
  }
  add(lm_head_, lm_head_split(mapping), 1, use.hbm_fc);
  const std::int64_t heads = mapping.whole_layers ? std::int64_t{mapping.attention} * shape_.kv_heads
                                                  : std::int64_t{shape_.layers} * mapping.attention;
  use.hbm_kv = columns * heads;
  use.lpddr += columns * (pages_of_column() - heads);
  return use;
}

}  // namespace lamina::h2m2
