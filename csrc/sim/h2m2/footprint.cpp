#include "sim/h2m2/footprint.hpp"

namespace lamina::h2m2 {

Footprint footprint(const Shape& shape, std::int64_t kv_tokens) {
  const double hidden = shape.hidden;
  const double bytes = shape.element_bytes;
  const double query = static_cast<double>(shape.heads) * shape.head_dim;
  const double key_and_value = 2.0 * shape.kv_heads * shape.head_dim;
  const double feed_forward = static_cast<double>(shape.ff_matrices) * hidden * shape.intermediate;
  return {
      .qkv = shape.layers * hidden * (query + key_and_value) * bytes / shape.heads,
      .attention = 2.0 * shape.layers * shape.head_dim * static_cast<double>(kv_tokens) * bytes,
      .fc = (shape.layers * (query * hidden + feed_forward) + hidden * shape.vocab) * bytes / shape.heads,
  };
}

Room exact_room(const Board& board, const Shape& shape, const Moment& moment) {
  return {board.hbm.capacity_bytes, board.lpddr.capacity_bytes, footprint(shape, moment.kv_tokens)};
}

double total_bytes(const Shape& shape, const Footprint& unit) {
  return shape.heads * (unit.qkv + unit.fc) + shape.kv_heads * unit.attention;
}

double hbm_bytes(const Mapping& mapping, const Shape& shape, const Footprint& unit) {
  if (mapping.whole_layers) {
    const double weights = shape.heads * (mapping.qkv * unit.qkv + mapping.fc * unit.fc);
    return (weights + shape.kv_heads * (mapping.attention * unit.attention)) / shape.layers;
  }
  return mapping.attention * unit.attention + mapping.qkv * unit.qkv + mapping.fc * unit.fc;
}

bool fits(const Mapping& mapping, const Shape& shape, const Room& room) {
  const int heads = mapping.whole_layers ? shape.layers : shape.heads;
  const int groups = mapping.whole_layers ? shape.layers : shape.kv_heads;
  const Mapping other{heads - mapping.qkv, groups - mapping.attention, heads - mapping.fc,
                      mapping.whole_layers};
  return hbm_bytes(mapping, shape, room.unit) <= room.hbm_bytes &&
         hbm_bytes(other, shape, room.unit) <= room.lpddr_bytes;
}

}  // namespace lamina::h2m2
