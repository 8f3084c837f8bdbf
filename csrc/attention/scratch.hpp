#pragma once

#include <cstddef>
#include <memory>
#include <new>

namespace lamina::attention {

// Numbers that are written before they are read, on whole cache lines. Grows, and then forgets.
template <typename T>
class Scratch {
public:
  T* room_for(std::size_t count) {
    if (count > capacity_) {
      data_.reset();
      data_.reset(static_cast<T*>(::operator new(count * sizeof(T), kLine)));
      capacity_ = count;
    }
    return data_.get();
  }

  T* data() const noexcept { return data_.get(); }

private:
  static constexpr std::align_val_t kLine{64};
  struct Delete {
    void operator()(T* p) const noexcept { ::operator delete(p, kLine); }
  };

  std::unique_ptr<T, Delete> data_;
  std::size_t capacity_ = 0;
};

}  // namespace lamina::attention
