#pragma once

#include <array>
#include <cstdint>

#include "sim/h2m2/board.hpp"
#include "sim/h2m2/pages.hpp"

namespace lamina::h2m2 {

// How consecutive pages are divided: HBM has those before `hbm_end`, LPDDR those from `lpddr_begin` on. They
// overlap by one page where the boundary runs through it.
struct Split {
  std::int64_t hbm_end = 0;
  std::int64_t lpddr_begin = 0;

  bool operator==(const Split&) const = default;
};

// Weights that lie together, from the beginning of a page on, divided evenly into heads.
struct Region {
  std::int64_t bytes = 0;
  std::int64_t page_bytes = 1;

  std::int64_t pages() const { return (bytes + page_bytes - 1) / page_bytes; }
  // The first n of so many parts are on the HBM side.
  Split split(std::int64_t n, std::int64_t parts) const;
};

// Where everything is in the board's logical space, and on which side a mapping wants it. First come the
// layers' weights, each qkv (query, key and value projections) and fc (output projection and feed-forward),
// then the LM head, if there is one, as one more fc; then KV, by layer, KV head and column. The embedding
// table and learned positions stay with the host: an iteration reads one row of each a request.
class Layout {
public:
  enum class Part { kQkv, kFc };

  // Throws std::invalid_argument if a page cannot hold one token of one KV head.
  Layout(const Board& board, const Shape& shape, std::int64_t columns);

  // Token slots of one column: as many as a page has room for, of one KV head's K and V.
  static std::int64_t slots_of_column(const Board& board, const Shape& shape);

  int layers() const { return shape_.layers; }
  int kv_heads() const { return shape_.kv_heads; }
  std::int64_t page_bytes() const { return qkv_.page_bytes; }
  std::int64_t pages() const { return kv_begin() + columns_ * pages_of_column(); }
  std::int64_t pages_of_column() const { return std::int64_t{shape_.layers} * shape_.kv_heads; }
  std::int64_t slot_bytes() const;  // of a token, over all layers and KV heads
  std::int64_t weight_bytes() const;

  const Region& region(Part part) const { return part == Part::kQkv ? qkv_ : fc_; }
  const Region& lm_head() const { return lm_head_; }
  Pages::Page weights_begin(int layer, Part part) const;
  Pages::Page lm_head_begin() const;
  Pages::Page kv(int layer, int kv_head, std::int64_t column) const;

  // Throws std::invalid_argument for a mapping that this model does not have.
  void require_possible(const Mapping& mapping) const;
  Split split(const Mapping& mapping, int layer, Part part) const;
  Split lm_head_split(const Mapping& mapping) const;
  int kv_heads_in_hbm(const Mapping& mapping, int layer) const;

  // Pages on each side when the mapping is in force and so many columns are in use.
  struct Use {
    std::int64_t hbm_qkv = 0;
    std::int64_t hbm_kv = 0;
    std::int64_t hbm_fc = 0;
    std::int64_t lpddr = 0;

    std::int64_t hbm() const { return hbm_qkv + hbm_kv + hbm_fc; }
  };
  Use use(const Mapping& mapping, std::int64_t columns) const;

private:
  std::int64_t layer_pages() const { return qkv_.pages() + fc_.pages(); }
  std::int64_t kv_begin() const { return shape_.layers * layer_pages() + lm_head_.pages(); }

  Shape shape_;
  std::int64_t columns_;
  Region qkv_, fc_, lm_head_;
};

// Frames of each side that a mapping is not offered. They make up for what a policy does not count when it
// takes heads as equal shares of whole pages, so that what it finds to fit does fit, page by page.
struct Reserve {
  std::int64_t hbm_frames = 0;
  std::int64_t lpddr_frames = 0;
};

// On each side: for each weight region the most that a boundary between two heads can round up to whole
// pages, and a page a layer for the activations (a tensor of batch x hidden; larger ones take turns). On the
// LPDDR side one more, through which pages change sides when everything else is full.
Reserve reserve_of(const Board& board, const Shape& shape);

// What a mapping has to fit in when so many columns are in use.
Room paged_room(const Board& board, const Shape& shape, std::int64_t columns);

// Frames in a side's capacity.
std::int64_t frames_of(const Side& side, const Board& board);

// The most columns for which, and for any smaller number of which, there are a mapping by heads and a mapping
// by whole layers that fit. 0 if there is no room for KV, or not even for the weights.
std::int64_t most_columns(const Board& board, const Shape& shape);

// Bytes that fragmentation would take on each side, on average, if every request's K and V of each layer were
// paged for themselves: half a page each.
std::int64_t waste_by_request(const Board& board, const Shape& shape, std::int64_t batch);

// The paper's equation 2 for the activations, a tensor of batch x hidden in each layer: the
// unused rest of its last page. At whole pages of weights and KV this is all there is.
std::int64_t waste_of_activations(const Board& board, const Shape& shape, std::int64_t batch);

}  // namespace lamina::h2m2
