"""The walls around a candidate: namespaces, Landlock, seccomp, cgroups and the supervisor that uses them.

Nothing in this folder imports anything outside it but the standard library: the supervisor is started as a
bare interpreter (`python -I -S`) that must come up in milliseconds, without torch.
"""
