// Stands in for LeakSanitizer, which cannot begin under QEMU.
extern "C" void __lsan_disable() {}
extern "C" void __lsan_enable() {}
