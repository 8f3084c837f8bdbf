#include "sim/h2m2/paged_room.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace lamina::h2m2 {

namespace {

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
  // More cannot be numbered. However many fit beside the weights on one side, with the other empty, need no
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
