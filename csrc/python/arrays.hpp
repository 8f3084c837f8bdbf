#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>

namespace lamina {

template <typename T>
using Array =
    nanobind::ndarray<T, nanobind::numpy, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

// Taken as they are or refused: converting a list of ids at every step would cost more than serving it, and
// converting floats would hide a mistake.
template <typename T>
using Input =
    nanobind::ndarray<const T, nanobind::numpy, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

template <typename T>
std::span<const T> span_of(const Input<T>& array) {
  return {array.data(), array.size()};
}

// An array over data of `owner`, which it keeps alive.
template <typename T, typename Owner>
Array<T> array_over(T* data, std::size_t size, Owner owner) {
  auto holder = std::make_unique<Owner>(std::move(owner));
  nanobind::capsule capsule(holder.get(),
                            [](void* p) noexcept { std::unique_ptr<Owner>(static_cast<Owner*>(p)); });
  holder.release();
  return Array<T>(data, {size}, capsule);
}

template <typename T>
Array<T> array_of(std::span<const T> values) {
  auto copy = std::make_unique_for_overwrite<T[]>(values.size());
  std::copy(values.begin(), values.end(), copy.get());
  T* data = copy.get();
  return array_over(data, values.size(), std::move(copy));
}

}  // namespace lamina
