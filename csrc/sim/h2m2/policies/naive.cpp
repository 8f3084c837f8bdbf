#include <limits>

#include "sim/h2m2/footprint.hpp"
#include "sim/h2m2/policies/policies.hpp"

namespace lamina::h2m2 {

namespace {

// Whole sublayers of whole layers, one side at work at a time: the best way to fill HBM with such pieces.
// Layers are alike, so numbers of them say all.
class Naive final : public MappingPolicy {
public:
  using MappingPolicy::MappingPolicy;

protected:
  std::optional<Mapping> choose(const Moment& moment, const Room& room) const override {
    const Shape& shape = times().shape();
    const int layers = shape.layers;
    const Pieces qkv(room.unit.qkv * shape.heads / layers, layers);
    const Pieces attention(room.unit.attention * shape.kv_heads / layers, layers);
    const Pieces fc(room.unit.fc * shape.heads / layers, layers);
    const double qkv_gain = gain({layers, 0, 0, true}, moment);
    const double attention_gain = gain({0, layers, 0, true}, moment);
    const double fc_gain = gain({0, 0, layers, true}, moment);
    double best = -std::numeric_limits<double>::infinity();
    std::optional<Mapping> found;
    for (int a = 0; a <= layers; ++a) {
      const double hbm = room.hbm_bytes - a * attention.bytes();
      const double lpddr = room.lpddr_bytes - (layers - a) * attention.bytes();
      Window window(fc, hbm, lpddr - layers * qkv.bytes());
      for (int q = 0; q <= layers; ++q) {
        window.follow(hbm - q * qkv.bytes(), lpddr - (layers - q) * qkv.bytes());
        if (window.least() > window.most()) continue;
        const int f = fc_gain > 0 ? window.most() : window.least();
        const double gained = a * attention_gain + q * qkv_gain + f * fc_gain;
        if (gained <= best) continue;
        best = gained;
        found = Mapping{q, a, f, true};
      }
    }
    return found;
  }

private:
  // Time that a layer of these saves in HBM, once for each layer.
  double gain(const Mapping& in_hbm, const Moment& moment) const {
    const int layers = times().shape().layers;
    const double without = times().of({0, 0, 0, true}, moment, false).iteration_ns(layers);
    return (without - times().of(in_hbm, moment, false).iteration_ns(layers)) / layers;
  }
};

}  // namespace

std::unique_ptr<Policy> make_naive(const Board& board, const Shape& shape, bool translated) {
  return std::make_unique<Naive>(board, shape, translated);
}

}  // namespace lamina::h2m2
