"""Ansible connection plugins, found through `ANSIBLE_CONNECTION_PLUGINS`.

See `laggard.layers_services.local.provider`. The plugins import Ansible only.
"""
