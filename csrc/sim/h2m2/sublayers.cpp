#include "sim/h2m2/sublayers.hpp"

namespace lamina::h2m2 {

Sublayers::Sublayers(const Board& board, const Side& memory, int chips, const Shape& shape)
    : chips_(board, memory, chips, shape.element_bytes), shape_(shape) {
  const double hidden = shape.hidden;
  const double query = static_cast<double>(shape.heads) * shape.head_dim;
  const double key_and_value = 2.0 * shape.kv_heads * shape.head_dim;
  const double up = static_cast<double>(shape.ff_matrices - 1) * shape.intermediate;
  for (int heads = 0; heads <= shape.heads; ++heads) {
    const auto share = [&](double columns) { return columns * heads / shape.heads; };
    qkv_.push_back(chips_.matrix(hidden, share(query + key_and_value)));
    projection_.push_back(chips_.matrix(query, share(hidden)));
    up_.push_back(chips_.matrix(hidden, share(up)));
    down_.push_back(chips_.matrix(shape.intermediate, share(hidden)));
    lm_head_.push_back(chips_.matrix(hidden, share(shape.vocab)));
  }
}

SideTime Sublayers::qkv(int heads, const Moment& moment, bool translated) const {
  return one(qkv_[static_cast<std::size_t>(heads)], moment, translated);
}

SideTime Sublayers::attention(int groups, const Moment& moment, bool translated) const {
  SideTime time;
  time += chips_.attention(shape_, groups, moment, translated);
  return time;
}

SideTime Sublayers::fc(int heads, const Moment& moment, bool translated) const {
  const auto n = static_cast<std::size_t>(heads);
  const auto batch = static_cast<double>(moment.batch);
  SideTime time;
  time += chips_.gemm(projection_[n], batch, translated);
  time += chips_.gemm(up_[n], batch, translated);
  time += chips_.gemm(down_[n], batch, translated);
  return time;
}

SideTime Sublayers::lm_head(int heads, const Moment& moment, bool translated) const {
  return one(lm_head_[static_cast<std::size_t>(heads)], moment, translated);
}

SideTime Sublayers::one(const Gemm& matrix, const Moment& moment, bool translated) const {
  SideTime time;
  time += chips_.gemm(matrix, static_cast<double>(moment.batch), translated);
  return time;
}

}  // namespace lamina::h2m2
